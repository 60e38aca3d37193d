"""Real peers on real hivemind, each a host of its own on a long, lossy and narrow line where that can be made: killed, late and
slow ones, and one nobody can connect to, train one model.

A GPT once; SHOAL_SWARM_ROUNDS says how often a GPT and an MLM: ./scripts/soak asks for many.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from swarm_workers import Workers

from shoal.testing import hosts, line
from shoal.testing.extras import needs
from shoal.testing.patience import patient

# Not imported to see whether they are there: that takes seconds, and only the peers need them.
pytestmark = [
    pytest.mark.integration,
    needs("torch", "hivemind"),
]

WORKER = Path(__file__).with_name("swarm_worker.py")
ROUNDS = int(os.environ.get("SHOAL_SWARM_ROUNDS", "0"))
TASKS = ["gpt", "mlm"] if ROUNDS else ["gpt"]
BATCH, PEERS = 16, 3
MODEL = {"depth": 2, "lr": 3e-3, "last": 450} if ROUNDS else {"depth": 1, "lr": 8e-3, "last": 250}
"""Its layers and highest learning rate, and the step after which that stays low."""
SAMPLES = (MODEL["last"] + 100) * BATCH * PEERS
"""Minimum number of samples; the loss has levelled off by then."""
PACE_S = 0.012
LINE = line.Line(delay_s=0.01, loss=0.002, bytes_per_s=2.5e6)
"""Line of every peer. Between two of them: 40 ms round trip, 20 Mbit/s, 4 of 1000 packets lost each way."""
TIMEOUT_S = 600.0
SWARM = {
    "run_id": "test",
    "target_batch_size": BATCH * PEERS,
    "local_steps": 20,
    "matchmaking_s": 3.0,
    "averaging_s": 20.0,
    "refresh_s": 0.25,
    "expiry_s": 30.0,
}


class Peer:
    """A worker and what it has said so far."""

    def __init__(self, workers: Workers, folder: Path, log: Path, host: hosts.Host | None, **told: Any):
        self._workers, self._log, self._pipe = workers, log, log.with_suffix(".said")
        self._name = str(log)
        os.mkfifo(self._pipe)
        env = {**(os.environ if host is None else host.env()), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
        files = {"folder": str(folder), "said": str(self._pipe), "log": str(log)}
        workers.start(name=self._name, host=None if host is None else host.init_pid, env=env, told=told, **files)
        self.said: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def expect(self, is_it: Callable[[dict[str, Any]], bool], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """The first thing it says, or has said, that is it."""
        deadline = time.monotonic() + patient(timeout_s)
        with self._news:
            while True:
                for facts in self.said:
                    if is_it(facts):
                        return facts
                left = deadline - time.monotonic()
                assert left > 0 and self._reader.is_alive(), f"{self.said[-3:]}\n{self._log.read_text()[-3000:]}"
                self._news.wait(min(left, 1.0))

    def rounds(self) -> list[dict[str, Any]]:
        with self._news:
            return [facts for facts in self.said if "members" in facts]

    def worker(self) -> psutil.Process:
        return psutil.Process(self._workers.fact(self._name, "pid"))

    def exit_code(self) -> int:
        return self._workers.fact(self._name, "exit")

    def result(self) -> dict[str, Any]:
        found = self.expect(lambda facts: "loss" in facts)
        assert self.exit_code() == 0, self._log.read_text()[-3000:]
        return found

    def close(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.worker().kill()
        self.exit_code()
        self._reader.join(5)

    def _read(self) -> None:
        with self._pipe.open("rb") as pipe:
            for said in pipe:
                if said.startswith(b"{"):
                    with self._news:
                        self.said.append(json.loads(said) | {"at": time.monotonic()})
                        self._news.notify_all()


class Field:
    """Places where peers run: separate hosts as root, otherwise processes on the loopback device."""

    def __init__(self, stack: ExitStack, folder: Path, workers: Workers):
        self._stack, self._folder, self._workers = stack, folder, workers
        self._lan = stack.enter_context(hosts.lan()) if hosts.missing() is None else None
        self._first: list[str] = []
        self._goal = folder / "goal"

    def goal(self, samples: int) -> None:
        """Peers that have seen so many leave."""
        aside = self._goal.with_suffix(".new")
        aside.write_text(str(samples))
        aside.replace(self._goal)

    def peer(self, name: str, **told: Any) -> Peer:
        swarm = {**SWARM, "initial_peers": self._first, **told.pop("swarm", {})}
        told = {
            "parallel": "swarm",
            "batch": BATCH,
            **MODEL,
            "dir": str(self._folder / name),
            "swarm": swarm,
            **told,
        }
        told["goal"] = str(self._goal)
        host = self._lan and self._lan.add(name, line=LINE if line.missing() is None else None)
        home = host.home if host is not None else self._folder / f"{name}.home"
        home.mkdir(exist_ok=True)
        peer = Peer(self._workers, home, self._folder / f"{name}.log", host, **told)
        self._stack.callback(peer.close)
        if not self._first:
            ours = "/127.0.0.1/" if self._lan is None else f"/{self._lan[name].address}/"
            self._first = [a for a in peer.expect(lambda facts: "address" in facts)["address"] if ours in a]
        return peer

    def expect_gone(self, name: str, tree: list[psutil.Process]) -> None:
        """All that a peer has started ends soon after it."""
        deadline = time.monotonic() + patient(10)
        while left := self._left_of(name, tree):
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.05)

    def _left_of(self, name: str, tree: list[psutil.Process]) -> list[psutil.Process]:
        if self._lan is not None:
            return self._lan[name].processes()
        return [process for process in tree if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    made = Workers(WORKER, tmp_path_factory.mktemp("workers") / "log")
    yield made
    made.close()


@pytest.fixture
def field(tmp_path: Path, workers: Workers) -> Iterator[Field]:
    with ExitStack() as stack:
        yield Field(stack, tmp_path, workers)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("number", range(max(ROUNDS, 1)))
def test_killed_late_and_slow_peers_reach_the_loss_of_one_process(field: Field, task: str, number: int) -> None:
    dice = random.Random(f"{task} {number}")
    first, slow, doomed = (
        field.peer(name, task=task, company=PEERS, pace_s=PACE_S * times, swarm={"client_mode": name == "slow"})
        for name, times in (("first", 1), ("slow", 3), ("doomed", 1))
    )
    doomed.expect(lambda facts: facts.get("round", 0) >= 2 + dice.randrange(4))
    worker = doomed.worker()
    tree = worker.children(recursive=True)
    time.sleep(dice.random())  # a random moment of a round
    worker.kill()
    made = len(first.rounds())
    field.expect_gone("doomed", tree)
    late = field.peer("late", task=task, pace_s=PACE_S)
    first.expect(lambda _: len(first.rounds()) >= made + 2)
    assert [facts["round"] for facts in first.rounds()] == list(range(1, len(first.rounds()) + 1)), "none was lost"
    joined = late.expect(lambda facts: "joined" in facts)
    assert joined["joined"] > 0, "it began with the swarm's state"
    met = late.expect(lambda facts: facts.get("members", 0) >= PEERS)
    assert met["at"] - joined["at"] < 60, "it trains within a minute of its download"
    # So far ahead that all know it before they are there.
    field.goal(max(SAMPLES, met["samples"] + 4 * SWARM["local_steps"] * BATCH * PEERS))
    single = field.peer("alone", task=task, parallel="none", batch=BATCH * PEERS, swarm={})
    found = [peer.result() for peer in (first, slow, late)]
    assert len({facts["hash"] for facts in found}) == 1, "all hold the same model"
    alone = single.result()
    print(f"{task}: {found[0]['samples']} samples, loss {found[0]['loss']:.4f}, of one process {alone['loss']:.4f}")
    assert found[0]["loss"] <= 1.02 * alone["loss"]


@pytest.mark.timeout(480)
@pytest.mark.parametrize("more", [{}, {"offload": True}, {"delayed": True}] if ROUNDS else [{}], ids=str)
def test_large_batches_are_averaged_while_a_peer_is_killed_and_another_comes_late(
    field: Field, more: dict[str, bool]
) -> None:
    batch, steps = 16 * BATCH, 24 if ROUNDS else 12
    swarm = {"mode": "large-batch", "target_batch_size": batch, "compression": "fp16", "matchmaking_s": 1.0, **more}
    first, doomed = (
        field.peer(name, task="gpt", company=2, pace_s=PACE_S, swarm=swarm) for name in ("first", "doomed")
    )
    doomed.expect(lambda facts: facts.get("round", 0) >= 3)
    doomed.worker().kill()
    late = field.peer("late", task="gpt", pace_s=PACE_S, swarm=swarm)
    assert late.expect(lambda facts: "joined" in facts)["joined"] > 0, "it began with the swarm's state"
    late.expect(lambda facts: "round" in facts)
    field.goal(steps * batch)
    found = [peer.result() for peer in (first, late)]
    single = field.peer("alone", task="gpt", parallel="none", batch=batch, swarm={}).result()
    print(f"{more}: {[round(facts['loss'], 3) for facts in found]}, of one process {single['loss']:.3f}")
    assert all(facts["loss"] <= 1.05 * single["loss"] for facts in found)


def test_an_interrupted_peer_leaves_and_nothing_of_it_stays(field: Field) -> None:
    peer = field.peer("first", task="gpt")
    peer.expect(lambda facts: facts.get("round", 0) >= 1)
    worker = peer.worker()
    tree = worker.children(recursive=True)
    worker.send_signal(signal.SIGINT)
    peer.exit_code()
    field.expect_gone("first", tree)
