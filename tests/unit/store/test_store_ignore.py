from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from shoal.core.errors import InvalidSpec, NotFound, SourceTooLarge
from shoal.store.ignore import LARGE_FILE, human_size, large_files, scan


def write(root: Path, *paths: str, size: int = 1) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x" * size)


def listed(root: Path, **options: bool) -> list[str]:
    return [f.path for f in scan(root, **options).files]  # type: ignore[arg-type]


def test_what_is_never_code_is_left_out(tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        "a/.git/config",
        "__pycache__/x.txt",
        "b/.venv/bin/python",
        "venv/x",
        "node_modules/y/z.js",
    )
    write(tmp_path, "a/m.pyc", ".DS_Store", "nb/.ipynb_checkpoints/n.ipynb", ".github/ci.yml", "a/venv.py")
    assert listed(tmp_path) == [".github/ci.yml", "a/venv.py", "train.py"]
    assert len(listed(tmp_path, ignore=False)) == 11


def test_ignore_files_count_at_every_level_and_the_deepest_decides(tmp_path: Path) -> None:
    write(
        tmp_path,
        "keep.txt",
        "x.log",
        "data/big.bin",
        "sub/x.log",
        "sub/special.log",
        "sub/deep/only.tmp",
        "sub/build/o",
    )
    write(tmp_path, "top.cfg", "sub/top.cfg")
    (tmp_path / ".gitignore").write_text("*.log\ndata/\n/top.cfg\n# comment\n")
    (tmp_path / "sub/.gitignore").write_text("!special.log\nbuild\n")
    (tmp_path / "sub/deep/.shoalignore").write_text("*.tmp\n")
    assert listed(tmp_path) == [
        ".gitignore",
        "keep.txt",
        "sub/.gitignore",
        "sub/deep/.shoalignore",
        "sub/special.log",
        "sub/top.cfg",
    ]


def test_shoalignore_overrides_gitignore(tmp_path: Path) -> None:
    write(tmp_path, "weights.bin", "notes.md")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / ".shoalignore").write_text("!weights.bin\nnotes.md\n")
    assert "weights.bin" in listed(tmp_path)
    assert "notes.md" not in listed(tmp_path)


def test_links_inside_the_tree_are_followed(tmp_path: Path) -> None:
    write(tmp_path, "real/a.py")
    (tmp_path / "link.py").symlink_to("real/a.py")
    (tmp_path / "folder").symlink_to("real")
    assert listed(tmp_path) == ["folder/a.py", "link.py", "real/a.py"]


def test_a_link_out_of_the_tree_is_refused_by_name_unless_ignored(tmp_path: Path) -> None:
    write(tmp_path, "src/a.py", "secret")
    link = tmp_path / "src/deep/out"
    link.parent.mkdir()
    link.symlink_to("../../secret")
    with pytest.raises(InvalidSpec, match="deep/out"):
        scan(tmp_path / "src")
    assert "deep/out" in [f.path for f in scan(tmp_path / "src", follow_out=True).files]
    (tmp_path / "src/.shoalignore").write_text("out\n")
    assert "a.py" in listed(tmp_path / "src")


def test_a_sibling_whose_name_begins_alike_is_outside(tmp_path: Path) -> None:
    write(tmp_path, "src/a", "src-secrets/key")
    (tmp_path / "src/out").symlink_to(tmp_path / "src-secrets/key")
    with pytest.raises(InvalidSpec, match="leaves the folder"):
        scan(tmp_path / "src")


def test_links_in_a_circle_and_to_nowhere_are_skipped_with_a_word(tmp_path: Path) -> None:
    write(tmp_path, "a/b/c.py")
    (tmp_path / "a/b/up").symlink_to("..")
    (tmp_path / "a/nowhere").symlink_to("not-there")
    found = scan(tmp_path)
    assert [f.path for f in found.files] == ["a/b/c.py"]
    assert sorted(found.skipped) == ["a/b/up: a link loop", "a/nowhere: a broken link"]


def test_pipes_and_sockets_are_skipped_with_a_word(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "sock"))
        found = scan(tmp_path)
    assert found.files == []
    assert sorted(found.skipped) == ["pipe: not a regular file", "sock: not a regular file"]


def test_executables_and_sizes_are_noted(tmp_path: Path) -> None:
    write(tmp_path, "run.sh", size=7)
    (tmp_path / "run.sh").chmod(0o755)
    found = scan(tmp_path)
    assert (found.files[0].size, found.files[0].executable, found.size) == (7, True, 7)


def test_a_folder_far_too_large_is_refused_with_its_biggest_offenders(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "a.py")
    for n in range(6):
        (tmp_path / f"data/shards/part{n}").mkdir(parents=True)
        with (tmp_path / f"data/shards/part{n}/x.bin").open("wb") as f:
            f.truncate(10 << 30)
    with (tmp_path / "model.bin").open("wb") as f:
        f.truncate(3 << 30)
    with pytest.raises(SourceTooLarge) as error:
        scan(tmp_path, max_bytes=512 << 20)
    assert error.value.details["biggest"][0] == {"path": "data/shards/", "size": 60 << 30}
    assert "model.bin (3.2 GB)" in error.value.message
    assert len(error.value.details["biggest"]) == 4
    assert "dataset push" in (error.value.hint or "")


def test_a_folder_of_too_many_files_is_given_up_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.store.ignore._LOOK_ON_S", 0.0)
    for n in range(400):
        write(tmp_path, f"d{n % 7}/{n}")
    started = time.monotonic()
    with pytest.raises(SourceTooLarge, match="more than 100 files") as error:
        scan(tmp_path, max_files=100)
    assert time.monotonic() - started < 1
    assert error.value.details["seen"] < 400


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    write(tmp_path, "file")
    with pytest.raises(NotFound, match="no folder"):
        scan(tmp_path / "absent")
    with pytest.raises(InvalidSpec, match="not a folder"):
        scan(tmp_path / "file")


def test_a_name_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.py")).write_text("x")
    with pytest.raises(InvalidSpec, match=r"bad\\xff"):
        scan(tmp_path)


@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (10**10, "10.0 GB"), (2 * 10**12, "2.0 TB")]
)
def test_sizes_are_shown_for_people(size: int, shown: str) -> None:
    assert human_size(size) == shown


def test_what_runs_and_trackers_leave_behind_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "shoal-runs/a/metrics.jsonl", "wandb/run-1/log.txt", "sub/mlruns/0/meta.yaml")
    write(tmp_path, "lightning_logs/version_0/hparams.yaml", "mlruns.py", "docs/wandb")
    assert listed(tmp_path) == ["docs/wandb", "mlruns.py", "train.py"]
    assert len(listed(tmp_path, ignore=False)) == 7


def test_a_package_of_such_a_name_or_one_asked_for_is_code(tmp_path: Path) -> None:
    write(tmp_path, "wandb/__init__.py", "wandb/api.py", "mlruns/0/meta.yaml", "shoal-runs/x")
    (tmp_path / ".shoalignore").write_text("!mlruns/\n")
    assert listed(tmp_path) == [".shoalignore", "mlruns/0/meta.yaml", "wandb/__init__.py", "wandb/api.py"]


def test_a_virtual_environment_of_any_name_is_left_out(tmp_path: Path) -> None:
    write(
        tmp_path, "train.py", "my-env/pyvenv.cfg", "my-env/lib/torch.py", "tools/conda/conda-meta/history", "tools/x.py"
    )
    write(tmp_path, "tools/conda/lib/y.py")
    assert listed(tmp_path) == ["tools/x.py", "train.py"]
    assert listed(tmp_path / "my-env") == ["lib/torch.py", "pyvenv.cfg"], "asked for by itself, it is what is meant"


def test_large_files_are_named_largest_first(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "exactly.bin", "data/big.bin", "bigger.bin")
    for path, size in (("exactly.bin", LARGE_FILE), ("data/big.bin", LARGE_FILE + 1), ("bigger.bin", LARGE_FILE + 2)):
        os.truncate(tmp_path / path, size)
    found = large_files((f.path, f.size) for f in scan(tmp_path).files)
    assert found == [("bigger.bin", LARGE_FILE + 2), ("data/big.bin", LARGE_FILE + 1)]
