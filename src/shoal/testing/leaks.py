"""Fixtures that fail a test, or a file of tests, that leaves something behind.

After each test: environment variables, the working directory, an open run and threads that keep a process from ending. After each file:
processes (children, and detached ones whose data directory is below this run's temporary folder). After the run: network
namespaces and links. Import the fixtures into a `conftest.py`; a session-wide helper process is declared with `keep`.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Container, Iterator
from pathlib import Path

import psutil
import pytest

from shoal.testing.patience import patient
from shoal.testing.processes import command

__all__ = ["nothing_left_by_file", "nothing_left_by_test"]

_LIBRARIES = (
    "COLUMNS", "CUDA_", "DS_", "GRPC_", "HF_", "KMP_", "LIGHTNING_", "NCCL_", "OMP_", "PJRT_", "PL_", "PYTEST_", "PYTORCH_", "RAY_",
    "TOKENIZERS_", "TORCH", "TF_", "WANDB_",
)  # fmt: skip
"""Prefixes of variables that libraries set for the whole process when they are first imported or used."""
_NETWORK = (Path("/run/netns"), Path("/sys/class/net"))
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "/chromium/", "playwright")
_kept: set[int] = set()


def keep(pid: int) -> None:
    """Declare a process that belongs to the whole session, not to the file of tests that happened to start it."""
    _kept.add(pid)


@pytest.fixture(autouse=True)
def nothing_left_by_test() -> Iterator[None]:
    """Fail a test that leaves its environment, working directory, run or a thread behind; put back all but the last."""
    variables, folder, threads = dict(os.environ), Path.cwd(), set(threading.enumerate())
    yield
    left = [f"variable {name}" for name in _changed(variables)]
    os.environ.update(variables)
    for name in _changed(variables):
        del os.environ[name]
    if Path.cwd() != folder:
        left.append(f"working directory {Path.cwd()}")
        os.chdir(folder)
    left += _open_run()
    left += [f"thread {thread.name}" for thread in _lasting_threads(threads)]
    if left:
        pytest.fail(f"left behind: {', '.join(sorted(left))}", pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def nothing_left_by_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail when processes outlive the tests of a file, and end them."""
    folder, before = str(tmp_path_factory.getbasetemp()), set(_processes())
    yield
    if _ours(before, folder):
        gc.collect()  # worker processes of a DataLoader end with the last reference to its iterator
    deadline = time.monotonic() + patient(10)
    while (left := _ours(before, folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    named = [_described(process) for process in left]
    for process in left:
        _kill(process)
    if named:
        pytest.fail("left behind: " + ", ".join(named), pytrace=False)


def network() -> set[str]:
    """List this host's network namespaces and links by name, to be compared before and after a run."""
    return {entry.name for folder in _NETWORK if folder.is_dir() for entry in folder.iterdir()}


def _open_run() -> list[str]:
    """End the run that `shoal.init` of this process has begun, and name it."""
    start = sys.modules.get("shoal.sdk.start")
    run = start.current() if start is not None else None
    if run is None:
        return []
    run.finish(status="failed")
    return ["a run that was not finished"]


def _changed(variables: dict[str, str]) -> list[str]:
    names = set(os.environ) | set(variables)
    return [n for n in names if os.environ.get(n) != variables.get(n) and not n.startswith(_LIBRARIES)]


def _lasting_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return new threads that would keep the process from ending, after some time to end by themselves."""
    deadline = time.monotonic() + patient(5)
    while True:
        left = [t for t in set(threading.enumerate()) - before if not t.daemon and not _is_pool(t)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def _is_pool(thread: threading.Thread) -> bool:
    """Check for an idle thread of an executor: it ends with the process, and libraries keep it for later."""
    return thread.name.startswith(("ThreadPoolExecutor", "asyncio_", "AnyIO", "calls of tests"))


def _processes() -> dict[tuple[int, float], psutil.Process]:
    """Return all processes by id and time of start."""
    found = {}
    for process in psutil.process_iter():
        try:
            found[process.pid, process.create_time()] = process
        except psutil.Error:
            continue
    return found


def _ours(before: Container[tuple[int, float]], folder: str) -> list[psutil.Process]:
    """List live processes that were started since `before` by this one, or with a data directory below `folder`."""
    new = [process for key, process in _processes().items() if key not in before and key[0] not in _kept]
    children = {process.pid for process in psutil.Process().children(recursive=True)} if new else set()
    found = []
    for process in new:
        try:
            if process.status() == psutil.STATUS_ZOMBIE or _is_tracker(process):
                continue
            if process.pid in children or _home(process).startswith(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _is_tracker(process: psutil.Process) -> bool:
    """Check for a helper that lives as long as the process that uses it: those of `multiprocessing`, and the browser."""
    line = command(process)
    return any(name in line for name in _HELPERS)


def _home(process: psutil.Process) -> str:
    try:
        environ = process.environ()
    except psutil.Error:
        return ""
    return environ.get("SHOAL_HOME") or environ.get("SHOAL_NODE_DIR", "")


def _described(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} ({' '.join(process.cmdline())[:120]}; home {_home(process) or 'none'})"
    except psutil.Error:
        return f"process {process.pid}"


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
        process.wait(10)
    except (psutil.Error, RuntimeError):  # torch raises the latter when one of its own workers is killed
        pass
