"""Workers on a slot of a GPU whose torch cannot use it: they end with the reason, and do not train on the CPU in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.core.agents import BeatRequest
from shoal.testing.agent_gang import Gang

CPU_BUILD = """
from types import SimpleNamespace
__version__ = "2.9.1+cpu"
version = SimpleNamespace(cuda=None, hip=None, xpu=None)
"""
"""A torch that costs nothing to import."""
TRAIN = """
print("before", flush=True)
import torch
print("trained with", torch.__version__, flush=True)
"""
REASON = "this worker has a cuda slot, but torch 2.9.1+cpu is a CPU build (torch.version.cuda is None)"


@pytest.fixture
def on_gpu(gang: Callable[..., Gang]) -> Callable[..., Gang]:
    def make(script: str, *, entry: tuple[str, ...] = ("t.py",), **reply: Any) -> Gang:
        job = gang(list(entry), {"t.py": script, "torch/__init__.py": CPU_BUILD}, start=False, **reply)
        job.slot_kind = "cuda"
        job.start().finish()
        return job

    return make


def last(job: Gang) -> BeatRequest:
    found = job.server.last()
    assert found is not None
    return found


def test_a_plain_script_ends_where_it_imports_torch_with_the_reason_and_the_next_command(
    on_gpu: Callable[..., Gang],
) -> None:
    job = on_gpu(TRAIN)
    ended = last(job)
    assert ended.exit_code == 1 and ended.reason is not None
    assert ended.reason.startswith(REASON) and "--allow-cpu" in ended.reason
    assert job.server.log(stream="out") == ["before"]


def test_a_script_without_torch_is_not_concerned(on_gpu: Callable[..., Gang]) -> None:
    job = on_gpu("import sys; print('torch' in sys.modules)")
    assert last(job).exit_code == 0 and job.server.log(stream="out") == ["False"]


def test_with_allow_cpu_it_trains(on_gpu: Callable[..., Gang]) -> None:
    job = on_gpu(TRAIN, allow_cpu=True)
    assert last(job).exit_code == 0 and job.server.log(stream="out")[-1] == "trained with 2.9.1+cpu"


@pytest.mark.parametrize("launcher", ["direct", "torchrun"])
def test_a_gang_is_refused_whoever_starts_its_workers(on_gpu: Callable[..., Gang], launcher: str) -> None:
    job = on_gpu(TRAIN, accels=2, launcher=launcher)
    assert str(last(job).reason).startswith(REASON)
    assert not any("trained" in line for line in job.server.log())


def test_so_is_what_a_script_starts(on_gpu: Callable[..., Gang]) -> None:
    job = on_gpu(TRAIN, entry=("python", "-c", "import subprocess; subprocess.run(['python', 't.py'], check=True)"))
    assert last(job).exit_code == 1 and str(last(job).reason).startswith(REASON)


def test_a_worker_of_a_cpu_slot_is_told_of_no_promise(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": TRAIN, "torch/__init__.py": CPU_BUILD})
    job.finish()
    assert last(job).exit_code == 0
