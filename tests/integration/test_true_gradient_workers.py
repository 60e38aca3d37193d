"""True gradient with real workers: random splits over ranks and mini-batches, each a step of one training that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
import true_gradient_worker as worker  # noqa: E402

from shoal.core.ports import free_port  # noqa: E402
from shoal.testing.forks import Fork  # noqa: E402
from shoal.train.precision import Precision  # noqa: E402

pytestmark = [pytest.mark.integration, pytest.mark.torch]

WAYS = [
    ("ddp", "none", True, 1),
    ("ddp", "none", True, 2),
    ("ddp", "bf16", True, 1),
    ("ddp", "fp16", True, 1),
    ("ddp", "none", False, 1),
    ("fsdp", "none", True, 1),
    ("fsdp", "none", True, 2),
    ("fsdp", "bf16", True, 1),
    ("fsdp", "fp16", True, 1),
]
"""Parallel, amp, true gradient, calls of the model: trainings in the order in which the workers do them."""
DEALT = [("ddp", 41), ("fsdp", 41), ("ddp", 23), ("tp", 23)]
"""Parallel, size of the dataset: the trainings after those."""
SPLITS = 30 if os.environ.get("SHOAL_SOAK") else 10
TOLERANCE = {"none": 1e-5, "bf16": 2e-2, "fp16": 4e-3}
"""Allowed error relative to the norm. In 16 bits the gradient of each mini-batch is rounded to 8 or 11 bits."""


class Workers:
    """Processes that are started once. Each training of WAYS is one fit; each step of it is told from here."""

    def __init__(self, directory: Path, world: int):
        self._directory, self.world = directory, world
        self._processes: list[Fork] = []
        self._at = len(WAYS) + len(DEALT)

    def go_to(self, number: int) -> None:
        """The training of that number; those between are ended without a step."""
        if number < self._at:
            self.close()
            self._start()
        while self._at < number:
            self.finish()

    def finish(self) -> list[dict[str, Any]]:
        """The end of the present training; what it had to tell until then."""
        if self._at < len(WAYS):
            self._tell({"over": True})
        answers = []
        while "reason" not in (answer := self._answer()):
            answers.append(answer)
        assert answer["reason"] == ("out_of_data" if self._at < len(WAYS) else "finished")
        self._at += 1
        return answers

    def step(self, counts: list[list[int]], seed: int) -> dict[str, Any]:
        self._tell({"counts": counts, "seed": seed})
        return self._answer()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._processes = []

    def _start(self) -> None:
        names = ("parallel", "amp", "true_gradient", "calls", "size", "port")
        ways = [(*way, 0) for way in WAYS] + [(parallel, "none", False, 1, size) for parallel, size in DEALT]
        trainings = [dict(zip(names, (*way, free_port()), strict=True)) for way in ways]
        for rank in range(self.world):
            env = {
                **os.environ,
                **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.world)},
                **{"MASTER_ADDR": "127.0.0.1"},
            }
            command = [sys.executable, worker.__file__, json.dumps(trainings), str(self._directory)]
            with (self._directory / f"log.{rank}").open("w") as log:
                self._processes.append(
                    Fork(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
                )
        self._at = 0

    def _tell(self, what: dict[str, Any]) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(what) + "\n")
            process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._processes[0].stdout is not None
        line = self._processes[0].stdout.readline()
        assert line, (self._directory / "log.0").read_text()[-3000:]
        answer: dict[str, Any] = json.loads(line)
        return answer


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    made = Workers(tmp_path_factory.mktemp("workers"), world=3)
    yield made
    made.close()


def at_once(count: int, seed: int, amp: str) -> tuple[Any, float]:
    """Gradient and loss of one process with one large batch."""
    model = worker.Network()
    precision = Precision(amp, torch.device("cpu"))
    with precision.forward():
        loss = worker.loss_of(model, worker.samples_of(count, seed))
    precision.backward(loss)
    scale = precision.scaler.get_scale() if precision.scales else 1.0
    return torch.cat([p.grad.flatten() for p in model.parameters()]) / scale, float(loss.detach())


def apart(found: Any, expected: Any) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("number", range(len(WAYS)), ids=["-".join(map(str, way)) for way in WAYS])
def test_the_gradient_of_any_split_is_that_of_one_large_batch(workers: Workers, number: int) -> None:
    _, amp, true_gradient, _ = WAYS[number]
    workers.go_to(number)
    counts = st.lists(st.integers(1, 12), min_size=worker.ACCUMULATE, max_size=worker.ACCUMULATE)
    seen = 0

    @settings(
        max_examples=SPLITS, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(split=st.lists(counts, min_size=workers.world, max_size=workers.world), seed=st.integers(0, 9999))
    def every_split(split: list[list[int]], seed: int) -> None:
        nonlocal seen
        samples = sum(map(sum, split))
        for _ in range(20):
            answer = workers.step(split, seed)
            seen += samples
            found = torch.tensor(answer["gradient"])
            if bool(torch.isfinite(found).all()):
                break
            assert amp == "fp16", (
                "only a scaled loss may overflow: that step is left out, and the next one is scaled less"
            )
        assert answer["seen"] == seen
        expected, loss = at_once(samples, seed, amp)
        equal = len({count for of_rank in split for count in of_rank}) == 1
        if true_gradient or equal:
            assert apart(found, expected) < TOLERANCE[amp]
            assert answer["loss"] == pytest.approx(loss, rel=TOLERANCE[amp])
        else:
            means = mean_of_means(split, seed)
            assert apart(found, means) < TOLERANCE[amp]

    every_split()
    if not true_gradient:
        split = [[1, 12, 1], *[[1] * worker.ACCUMULATE] * (workers.world - 1)]
        found = torch.tensor(workers.step(split, 5)["gradient"])
        expected, _ = at_once(sum(map(sum, split)), 5, amp)
        assert apart(found, expected) > 0.05, "which shows that the others could have failed"


def mean_of_means(split: list[list[int]], seed: int) -> Any:
    """Return the gradient without the true gradient: each mini-batch has the same weight."""
    model = worker.Network()
    parts = [count for of_rank in split for count in of_rank]
    x, y = worker.samples_of(sum(parts), seed)
    losses = [worker.loss_of(model, pair) for pair in zip(x.split(parts), y.split(parts), strict=True)]
    torch.stack(losses).mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("number", range(len(DEALT)), ids=["-".join(map(str, way)) for way in DEALT])
def test_a_dataset_that_the_run_deals_out_gives_it_without_being_asked(workers: Workers, number: int) -> None:
    """Also in the last step of an epoch, whose few samples make shares of different size."""
    parallel, size = DEALT[number]
    workers.go_to(len(WAYS) + number)
    answers = workers.finish()
    step = worker.BATCH_SIZE * worker.ACCUMULATE * (1 if parallel == "tp" else workers.world)
    x, y = worker.samples_of(size, 0)
    assert [answer["seen"] for answer in answers] == [*range(step, size, step), size]
    for answer, *batch in zip(answers, x.split(step), y.split(step), strict=True):
        model = worker.Network()
        loss = worker.loss_of(model, batch)
        loss.backward()
        expected = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert apart(torch.tensor(answer["gradient"]), expected) < TOLERANCE["none"]
        assert answer["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
