"""`htp` and `hmp` in a process of their own: alone, off the platform, with a swarm that only answers questions."""

import json
import math
import signal
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from shoal.compat.netmind.registered import Registered
from shoal.compat.swarm.monitor import MonitorPilot
from shoal.compat.swarm.parsing import UPLOAD_EVERY_S, mend
from shoal.compat.swarm.trainer import TrainerPilot
from shoal.core.errors import UsageError
from shoal.sdk import start

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Record(NamedTuple):
    """A value as hivemind's DHT returns it."""

    value: Any
    expiration_time: float


class Dht:
    def __init__(self, **found):
        self.found, self.stopped = found, False

    def get(self, key, latest=False):
        return self.found.get(key)

    def is_alive(self):
        return not self.stopped

    def shutdown(self):
        self.stopped = True


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    for name in ("RANK", "WORLD_SIZE", "SHOAL_RESUME_FROM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "out"))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    if (run := start.current()) is not None:
        run.finish(status="failed")
    for number, handler in handlers.items():  # a monitor keeps its own until the end of its process
        signal.signal(number, handler)


@pytest.fixture
def optimizer():
    return SimpleNamespace(
        local_epoch=0,
        local_progress=SimpleNamespace(samples_per_second=20.0),
        tracker=SimpleNamespace(global_progress=SimpleNamespace(num_peers=3)),
        is_alive=lambda: False,
    )


def steps(tmp_path):
    lines = (tmp_path / "spool" / "rank-0.jsonl").read_text().splitlines()
    return {r["i"]: r["v"] for r in map(json.loads, lines) if r["k"] == "s"}


def report(step, loss=2.0, mini_steps=1, expires=1000.0):
    value = {"step": step, "samples_per_second": 5.0, "samples_accumulated": 8, "loss": loss, "mini_steps": mini_steps}
    return Record(value, expires)


def test_a_trainer_is_told_to_stop_after_its_steps_and_tells_each_round_once(tmp_path, optimizer):
    htp, dht = TrainerPilot(), Dht()
    htp.init(dht, optimizer, b"key", 600)
    htp.set_max_steps(4)
    htp.set_total_train_batch_size(32)
    htp.on_step_begin()
    told = []
    for epoch in (0, 0, 1, 1):
        optimizer.local_epoch = epoch
        told.append(htp.on_step_end({"loss": 1.5}))
    htp.on_train_end()
    htp.on_train_end()
    assert told == [False, False, False, True]
    assert dht.stopped
    found = steps(tmp_path)
    assert found[1] == {"loss": 1.5, "swarm/step": 0, "swarm/peers": 3, "swarm/samples_per_s": 20.0, "samples": 32}
    assert found[2] == found[4] == {"loss": 1.5}
    assert (found[3]["swarm/step"], found[3]["samples"]) == (1, 96)


def test_peers_that_start_from_one_seed_draw_different_orders(optimizer):
    def order(key):
        torch.manual_seed(0)
        htp = TrainerPilot()
        htp.init(Dht(), optimizer, key)
        drawn = torch.randperm(50).tolist()
        htp.on_train_end()
        return drawn

    assert order(b"one") == order(b"one") != order(b"another")


def test_a_step_before_init_says_what_comes_first():
    with pytest.raises(UsageError, match="not in a swarm") as refused:
        TrainerPilot().on_step_end()
    assert "htp.init" in refused.value.hint


def test_the_monitor_tells_the_metrics_of_a_step_once_and_saves_what_was_registered(tmp_path):
    registered = Registered()
    hmp = MonitorPilot(registered)
    hmp.init(Dht(), b"key")
    hmp.step(0, {})
    metrics = {"loss": 3.0, "alive peers": 2, "samples": 64, "performance": 10.5}
    hmp.step(13, metrics)
    hmp.step(13, metrics)
    with pytest.raises(UsageError, match="nothing to save"):
        hmp.save_pretrained()
    model = registered.model(torch.nn.Linear(2, 1))
    registered.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    hmp.save_pretrained()
    start.current().finish()
    assert steps(tmp_path) == {13: metrics}
    [saved] = (tmp_path / "out").rglob("model.pt")
    assert torch.equal(torch.load(saved, weights_only=True)["weight"], model.weight)


@pytest.mark.parametrize(
    ("others", "counted"),
    [
        ({}, {"a"}),
        ({"b": report(7)}, {"a", "b"}),
        ({"b": report(6, expires=950.0)}, {"a", "b"}),
        ({"b": report(3, expires=700.0)}, {"a"}),
        ({"b": report(7, mini_steps=0, loss=0.0)}, {"a"}),
        ({"b": report(7, loss=math.nan)}, {"a"}),
        ({"b": Record("not a report", 1000.0)}, {"a"}),
    ],
)
def test_the_monitor_counts_only_peers_that_are_there_and_whose_numbers_are_sound(others, counted):
    dht = Dht(run_metrics=Record({"a": report(7), **others}, 1000.0), other=Record({"x": 1}, 1.0))
    MonitorPilot(Registered()).init(dht)
    assert set(dht.get("run_metrics", latest=True).value) == counted
    assert dht.get("other").value == {"x": 1}


def test_the_monitor_sees_nothing_where_no_report_is_sound():
    dht = Dht(run_metrics=Record({"a": report(7, mini_steps=0)}, 1000.0))
    MonitorPilot(Registered()).init(dht)
    assert dht.get("run_metrics", latest=True) is None
    assert dht.get("another_metrics", latest=True) is None


def test_an_upload_interval_left_open_is_netminds_own():
    class HfArgumentParser:
        def parse_args_into_dataclasses(self):
            return (
                SimpleNamespace(store_checkpoints=True, upload_interval=None),
                SimpleNamespace(store_checkpoints=True, upload_interval=5.0),
                SimpleNamespace(store_checkpoints=False, upload_interval=None),
                SimpleNamespace(seed=1),
            )

    module = SimpleNamespace(HfArgumentParser=HfArgumentParser)
    mend(module)
    groups = HfArgumentParser().parse_args_into_dataclasses()
    assert [getattr(g, "upload_interval", "none") for g in groups] == [UPLOAD_EVERY_S, 5.0, None, "none"]
