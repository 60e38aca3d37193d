"""`nmp` in a process of its own: alone, off the platform, on real torch objects."""

import json
import logging

import pytest

from shoal.compat.netmind.nmp import NetmindPilot
from shoal.compat.netmind.registered import Registered
from shoal.sdk import start

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    for name in ("RANK", "WORLD_SIZE", "SHOAL_SPOOL", "OUTPUT_DIR", "SHOAL_RESUME_FROM", "USE_DDP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "out"))
    yield
    if (run := start.current()) is not None:
        run.finish(status="failed")


class Script:
    """Objects of a script: its own, and nmp."""

    def __init__(self):
        torch.manual_seed(0)
        self.registered = Registered()
        self.nmp = NetmindPilot(self.registered)
        self.model = self.registered.model(torch.nn.Linear(2, 1))
        self.optimizer = self.registered.optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9))

    def train(self, **metrics):
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()
        self.nmp.step(metrics or {"loss": 1.0})


@pytest.fixture
def script():
    return Script()


def records(tmp_path, kind):
    lines = (tmp_path / "spool" / "rank-0.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["k"] == kind]


def test_progress_ends_at_100_percent_though_the_bar_was_too_long(script, tmp_path):
    script.nmp.init()
    script.nmp.init_train_bar(total_epoch=2, step_per_epoch=160)
    for _ in range(3):
        script.train()
    assert (script.nmp.cur_step, script.nmp.local_step, script.nmp.max_steps) == (3, 3, 320)
    script.nmp.finish_training()
    script.nmp.finish_training()
    last = records(tmp_path, "p")[-1]
    assert (last["i"], last["total"], last["done"]) == (3, 320, True)
    assert [f["status"] for f in records(tmp_path, "f")] == ["finished"]
    assert script.nmp.cur_step == 3


def test_a_bar_without_a_length_is_refused(script):
    with pytest.raises(ValueError, match="max_steps"):
        script.nmp.init_train_bar(total_epoch=3)


def test_step_takes_numbers_and_names_what_is_none(script):
    script.nmp.init()
    script.nmp.step({"Learning rate": torch.tensor(0.5), "loss": 1})
    for wrong in ("0.5", None, [1.0], torch.ones(2)):
        with pytest.raises(TypeError, match="'loss'"):
            script.nmp.step({"loss": wrong})


def test_evaluate_takes_strings_too(script, tmp_path):
    script.nmp.init()
    script.nmp.init_eval_bar(total_epoch=4)
    script.nmp.evaluate({"top1": " 71.250", "loss": 0.5})
    assert records(tmp_path, "e")[0]["v"] == {"top1": " 71.250", "loss": 0.5}
    assert (script.nmp.cur_eval_epoch, script.nmp.total_eval_epoch) == (1, 4)
    with pytest.raises(TypeError, match="'matrix'"):
        script.nmp.evaluate({"matrix": [[1]]})


def test_a_second_script_resumes_in_place_and_is_led_to_its_step(script):
    script.nmp.init()
    script.nmp.init_train_bar(total_epoch=3, step_per_epoch=4)
    for _ in range(6):
        script.train()
    script.nmp.finish_training()

    again = Script()
    model, weight = again.model, again.model.weight
    again.nmp.init()
    again.nmp.init_train_bar(total_epoch=3, step_per_epoch=4)
    assert again.model is model
    assert again.model.weight is weight
    assert torch.equal(again.model.weight, script.model.weight)
    assert (again.nmp.cur_step, again.nmp.cur_epoch, again.nmp.local_step) == (6, 1, 0)
    assert [again.nmp.should_skip_step() for _ in range(4)] == [True, True, False, False]
    script.optimizer.zero_grad()
    for one in (script, again):
        one.optimizer.zero_grad()
        one.model(torch.ones(1, 2)).sum().backward()
        one.optimizer.step()
    assert torch.equal(again.model.weight, script.model.weight)  # so the momentum came along


def test_without_step_per_epoch_all_steps_are_skipped_one_by_one(script):
    script.nmp.init_train_bar(max_steps=100)
    for _ in range(3):
        script.train()
    script.nmp.finish_training()
    again = Script()
    again.nmp.init_train_bar(max_steps=100)
    assert again.nmp.cur_epoch == 0
    assert [again.nmp.should_skip_step() for _ in range(4)] == [True, True, True, False]


def test_load_checkpoint_false_starts_over(script):
    script.nmp.init_train_bar(max_steps=100)
    script.train()
    script.nmp.finish_training()
    again = Script()
    again.nmp.init(load_checkpoint=False)
    again.nmp.init_train_bar(max_steps=100)
    assert (again.nmp.cur_step, again.nmp.should_skip_step()) == (0, False)


def test_time_estimation_neither_loads_nor_saves(script, monkeypatch, tmp_path):
    monkeypatch.setenv("TIME_ESTIMATE_PROCESS", "1")
    script.nmp.init_train_bar(max_steps=100)
    script.train()
    script.nmp.save_pretrained(force_save=True)
    script.train()
    script.nmp.finish_training()
    assert not list(tmp_path.glob("out/*"))


def test_more_steps_than_max_steps_end_the_process_well(script, tmp_path):
    script.nmp.init_train_bar(max_steps=2)
    script.train()
    script.train()
    with pytest.raises(SystemExit) as left:
        script.train()
    assert left.value.code == 0
    assert records(tmp_path, "f")[-1]["status"] == "finished"
    assert (tmp_path / "out" / "step-000000002" / "model.pt").is_file()


def test_extra_files_travel_inside_the_checkpoint_as_they_were_when_it_was_asked_for(script, tmp_path):
    notes, folder = tmp_path / "best.txt", tmp_path / "vocabulary"
    notes.write_text("accuracy 0.9")
    folder.mkdir()
    (folder / "words").write_text("a b c")
    script.nmp.init_train_bar(max_steps=100)
    script.train()
    script.nmp.save_pretrained([str(notes), str(folder)])
    notes.write_text("overwritten")
    script.train()
    script.nmp.finish_training()
    saved = tmp_path / "out" / "step-000000001"
    assert (saved / "best.txt").read_text() == "accuracy 0.9"
    assert (saved / "vocabulary" / "words").read_text() == "a b c"
    Script().nmp.init_train_bar(max_steps=100)  # and it loads


def test_saving_by_step_saves_at_multiples_only(script, tmp_path):
    script.nmp.init_train_bar(max_steps=100)
    for _ in range(5):
        script.train()
        script.nmp.save_pretrained_by_step(2)
    script.nmp.finish_training()
    assert [c["i"] for c in records(tmp_path, "c")] == [2, 4, 5]


def test_local_helpers_answer(script, capsys, tmp_path):
    script.nmp.init()
    script.nmp.log("hello", 1)
    assert capsys.readouterr().out == "hello 1\n"
    assert (script.nmp.get_rank(), script.nmp.get_local_rank()) == (0, 0)
    assert script.nmp.gen_checkpoint_dir() == str(tmp_path / "out" / "checkpoint-0")


def test_a_failed_download_is_falsy_and_says_why(script, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SHOAL_URL", raising=False)
    with caplog.at_level(logging.ERROR):
        assert not script.nmp.download_checkpoint(job_id="nothing", token="none")
    assert "nothing" in caplog.text


def test_use_ddp_makes_a_group_for_one_and_leaves_one_that_is_there(script):
    import torch.distributed as dist

    assert not dist.is_initialized()
    try:
        script.nmp.init(use_ddp=True)
        assert (dist.get_world_size(), dist.get_rank()) == (1, 0)
        wrapped = torch.nn.parallel.DistributedDataParallel(script.model)
        assert script.registered.model(wrapped) is wrapped
        script.nmp.init_train_bar(max_steps=5)
        script.train()
        script.nmp.finish_training()
        script.nmp.init(use_ddp=True)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
