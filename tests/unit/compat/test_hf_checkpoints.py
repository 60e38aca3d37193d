import json
import os
from types import SimpleNamespace

import pytest

from shoal.integrations._hf_checkpoints import last_checkpoint, mark, mirror, newest
from shoal.integrations._hf_resume import choose


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    for name in ("SHOAL_RESUME_FROM", "OUTPUT_DIR", "SHOAL_SPOOL", "SHOAL_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def write(folder, step, *, finished=True):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights %d" % step)
    if finished:
        (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return checkpoint


def trainer(output_dir="nowhere", weights_from=""):
    model = SimpleNamespace(config=SimpleNamespace(_name_or_path=str(weights_from)))
    return SimpleNamespace(args=SimpleNamespace(output_dir=str(output_dir)), model=model)


def test_the_newest_checkpoint_is_the_one_with_the_largest_step_that_is_finished(tmp_path):
    write(tmp_path, 9)
    tenth = write(tmp_path, 10)
    write(tmp_path, 11, finished=False)
    assert newest(tmp_path) == tenth
    assert newest(tenth) == tenth
    assert newest(tmp_path / "none") is None


def test_what_the_platform_gives_comes_before_what_lies_in_the_output_directory(tmp_path, monkeypatch):
    here, given = write(tmp_path / "out", 5), write(tmp_path / "given", 7)
    assert last_checkpoint() is None
    assert last_checkpoint(tmp_path / "out") == str(here)
    monkeypatch.setenv("SHOAL_RESUME_FROM", str(given))
    assert last_checkpoint(tmp_path / "out") == str(given)


def test_a_stray_output_dir_of_somebody_elses_is_not_looked_into(tmp_path, monkeypatch):
    write(tmp_path, 5)
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    assert last_checkpoint() is None


def test_finished_checkpoints_appear_whole_and_rotated_ones_disappear(tmp_path):
    source, output = tmp_path / "mine", tmp_path / "platform"
    write(source, 1)
    write(source, 2)
    write(source, 3, finished=False)
    mirror(source, output)
    assert sorted(p.name for p in output.iterdir()) == ["checkpoint-1", "checkpoint-2"]
    assert (output / "checkpoint-2/model.safetensors").read_bytes() == b"weights 2"
    for file in (source / "checkpoint-1").iterdir():
        file.unlink()
    (source / "checkpoint-1").rmdir()
    mirror(source, output)
    assert sorted(p.name for p in output.iterdir()) == ["checkpoint-2"]


def test_files_are_copied_where_they_cannot_be_linked(tmp_path, monkeypatch):
    write(tmp_path / "mine", 4)

    def refuse(*_):
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    mirror(tmp_path / "mine", tmp_path / "platform")
    assert (tmp_path / "platform/checkpoint-4/model.safetensors").read_bytes() == b"weights 4"


def test_train_without_an_argument_goes_on_from_what_the_platform_gives(tmp_path, monkeypatch):
    assert choose(trainer(), None) is None
    given = write(tmp_path, 7)
    monkeypatch.setenv("SHOAL_RESUME_FROM", str(given))
    assert choose(trainer(), None) == str(given)
    assert choose(trainer(), False) is False
    assert choose(trainer(), "mine") == "mine"


def test_a_checkpoint_whose_weights_the_script_has_loaded_itself_is_fine_tuned_not_continued(tmp_path, monkeypatch):
    given = write(tmp_path, 7)
    monkeypatch.setenv("SHOAL_RESUME_FROM", str(given))
    assert choose(trainer(weights_from=given), None) is None


def test_but_the_jobs_own_checkpoint_is_always_continued(tmp_path, monkeypatch):
    given = write(tmp_path, 7)
    monkeypatch.setenv("SHOAL_RESUME_FROM", str(given))
    monkeypatch.setenv("SHOAL_JOB_ID", "job_1")
    mark(given)
    assert choose(trainer(weights_from=given), None) == str(given)
    monkeypatch.setenv("SHOAL_JOB_ID", "job_2")
    assert choose(trainer(weights_from=given), None) is None


def test_asking_for_true_finds_the_platforms_checkpoint_when_the_output_directory_is_empty(tmp_path, monkeypatch):
    given = write(tmp_path / "given", 7)
    monkeypatch.setenv("SHOAL_RESUME_FROM", str(given))
    assert choose(trainer(tmp_path / "out"), True) == str(given)
    write(tmp_path / "out", 8)
    assert choose(trainer(tmp_path / "out"), True) is True


def test_a_pretrained_model_is_no_trainer_checkpoint(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("SHOAL_RESUME_FROM", str(tmp_path))
    assert choose(trainer(), None) is None
    assert last_checkpoint() is None
