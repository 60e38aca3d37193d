"""The directory of a local run, and what `shoal run` makes of its arguments. Real runs: tests/integration/test_local_run.py."""

import json
import os

import pytest

from shoal.cli.run.app import data_folders
from shoal.cli.run.run_dir import RunDir
from shoal.cli.run.tee import Tee
from shoal.core.errors import NameTaken, NotFound, UsageError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checkpoint(run, name, files):
    folder = run.checkpoints / name
    folder.mkdir()
    for file, text in files.items():
        (folder / file).write_text(text)
    return folder


def test_a_new_run_has_its_folders_and_says_what_it_is(here):
    run = RunDir.create("my run!", ["train.py", "--lr", "1"], 2)
    assert run.root.parent == here / "shoal-runs" and run.root.name.startswith("my-run-2")
    assert run.spool.is_dir() and run.checkpoints.is_dir() and run.logs.is_dir()
    facts = run.facts
    assert (facts["name"], facts["argv"], facts["world_size"]) == ("my run!", ["train.py", "--lr", "1"], 2)
    assert run.display_path == f"shoal-runs/{run.root.name}"


def test_a_directory_with_a_run_is_not_taken_for_another(here):
    RunDir.create("a", ["x.py"], 1, here / "run")
    with pytest.raises(NameTaken, match="already contains a run"):
        RunDir.create("b", ["x.py"], 1, here / "run")


def test_attempts_are_noted_with_how_they_ended(here):
    run = RunDir.create("a", ["x.py"], 1)
    assert run.begin(None) == 1
    run.end(1, "boom")
    assert run.begin(run.checkpoints / "step-5") == 2
    first, second = run.facts["attempts"]
    assert (first["exit_code"], first["reason"]) == (1, "boom")
    assert second["resumed_from"] == "step-5" and "ended" not in second


def test_the_newest_run_is_the_one_to_go_on_with(here):
    runs = [RunDir.create("a", ["x.py"], 1) for _ in range(3)]
    for number, run in enumerate(runs):
        run.facts = run.facts | {"created": f"2025-01-0{3 - number}T00:00:00Z"}
    assert RunDir.find(None).root == runs[0].root
    assert RunDir.find(runs[2].root).root == runs[2].root
    with pytest.raises(NotFound, match=r"no run\.json"):
        RunDir.find(here)


def test_only_complete_checkpoints_are_gone_on_from(here):
    run = RunDir.create("a", ["x.py"], 1)
    assert run.newest_checkpoint() is None
    listed = json.dumps({"files": {"model.pt": {"size": 2}}})
    good = checkpoint(run, "step-000000001", {"model.pt": "ab", "shoal.json": listed})
    torn = checkpoint(run, "step-000000002", {"model.pt": "a", "shoal.json": listed})
    half_made = checkpoint(run, ".tmp-step-000000003", {"model.pt": "ab", "shoal.json": listed})
    for age, folder in enumerate((good, torn, half_made)):
        os.utime(folder, (age, age))
    assert run.newest_checkpoint() == good


def test_data_is_named_by_its_folder_or_as_given(here):
    (here / "wiki").mkdir()
    assert data_folders(["wiki"]) == {"wiki": here / "wiki"}
    assert data_folders(["w=wiki", "v=./wiki"]) == {"w": here / "wiki", "v": here / "wiki"}
    with pytest.raises(UsageError, match="twice"):
        data_folders(["wiki", "wiki=wiki"])
    with pytest.raises(UsageError, match="not a folder"):
        data_folders(["missing"])


def read_all(fd):
    with os.fdopen(fd, "rb") as file:
        return file.read()


def tee_of(here, num_workers):
    out_r, out_w = os.pipe()
    tee = Tee(here / "logs", num_workers=num_workers, stdout=out_w, stderr=out_w)
    tee.start()
    return tee, out_r, out_w


def test_the_bytes_of_a_single_worker_pass_unchanged_and_its_log_has_whole_lines(here):
    tee, out_r, out_w = tee_of(here, 1)
    write = tee.pipe(0, "out")
    os.write(write, b"10%\r20%\rdone\nlast")
    os.close(write)
    tee.close()
    os.close(out_w)
    assert read_all(out_r) == b"10%\r20%\rdone\nlast"
    assert (here / "logs/rank-0.log").read_text() == "done\nlast\n"
    assert tee.tail(0, "out").endswith("last")


def test_lines_of_several_workers_are_told_apart(here):
    tee, out_r, out_w = tee_of(here, 2)
    for rank in (0, 1):
        write = tee.pipe(rank, "err")
        os.write(write, b"one\ntwo")
        os.close(write)
    tee.close()
    os.close(out_w)
    assert sorted(read_all(out_r).splitlines()) == [b"[rank0] one", b"[rank0] two", b"[rank1] one", b"[rank1] two"]
    assert (here / "logs/rank-1.log").read_text() == "one\ntwo\n"


def test_a_reader_that_leaves_does_not_end_the_log(here):
    tee, out_r, out_w = tee_of(here, 1)
    os.close(out_r)
    write = tee.pipe(0, "out")
    os.write(write, b"kept\n")
    os.close(write)
    tee.close()
    os.close(out_w)
    assert (here / "logs/rank-0.log").read_text() == "kept\n"
