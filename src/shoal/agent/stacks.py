"""Where each worker of this node is now: Python stacks where its interpreter tells them, else what the kernel knows."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import shoal
from shoal.agent import frames, runtime
from shoal.agent.inner import descendants

logger = logging.getLogger(__name__)

SIGNAL = 47
"""shoal.sdk.stacks.SIGNAL, which the agent must not import."""
_WAIT_S = 3.0
_SETTLED_S = 0.1
"""A file that has not grown for so long is whole: the interpreter writes a dump at one go."""
_MOST = 256 << 10
_SPY_S = 10.0
_STOPPED = "Tt"
_OURS = os.path.dirname(os.path.abspath(shoal.__file__))  # noqa: PTH100, PTH120


def gather(root_pid: int, ranks: Iterable[int], folder: Path, source: Path) -> list[dict[str, Any]]:
    """core.stacks.RankStack of each rank. `folder` is where the workers write; all are asked at the same time."""
    found = rank_processes(root_pid)
    asked = {rank: _ask(pid, folder / f"stacks-{rank}.txt") for rank in ranks if (pid := found.get(rank)) is not None}
    deadline = time.monotonic() + _WAIT_S
    return [
        _look(rank, found.get(rank), asked.get(rank), folder, source, deadline) | _work_done(found.get(rank))
        for rank in ranks
    ]


def rank_processes(root_pid: int) -> dict[int, int]:
    """Return rank → pid: of all processes below that carry the rank, the uppermost, whoever has started it."""
    found: dict[int, int] = {}
    for pid in descendants(root_pid):
        with suppress(OSError, ValueError):
            env = dict(e.partition(b"=")[::2] for e in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
            # A launcher's own workers inherit the number of the process that started it, and have a RANK of their own.
            rank = env.get(b"RANK", env.get(runtime.RANK.encode()))
            if rank is not None:
                found.setdefault(int(rank), pid)
    return found


def _ask(pid: int, file: Path) -> int | None:
    """Have a process write its stacks; returns where in the file they will begin, or None if it does not listen."""
    try:
        caught = next(line for line in _status(pid) if line.startswith("SigCgt:")).split()[1]
        if not int(caught, 16) >> (SIGNAL - 1) & 1 or _state(pid) in _STOPPED:
            return None
        start = file.stat().st_size
        os.kill(pid, SIGNAL)
        return start
    except (OSError, StopIteration, ValueError):
        return None


def _look(rank: int, pid: int | None, start: int | None, folder: Path, source: Path, deadline: float) -> dict[str, Any]:
    if pid is None:
        return {"rank": rank, "note": "without a process"}
    if (state := _state(pid)) in _STOPPED:
        # Lower case: a debugger holds it, and whoever uses that will let it go on.
        return {"rank": rank, "note": "stopped by a signal (SIGSTOP), and cannot answer", "stopped": state == "T"}
    stack = frames.from_faulthandler(_read(folder / f"stacks-{rank}.txt", start, deadline)) if start is not None else []
    stack = stack or frames.from_py_spy(_py_spy(pid))
    if not stack:
        return {"rank": rank, "note": _from_kernel(pid)}
    return {"rank": rank, **frames.describe(stack, str(source), _OURS)}


def _read(path: Path, start: int, deadline: float) -> str:
    """What was written from `start` on, once it is whole. The file is the job's: nothing of it is trusted."""
    size, since = start, time.monotonic()
    while (now := time.monotonic()) < deadline and not (size > start and now - since >= _SETTLED_S):
        time.sleep(0.02)
        with suppress(OSError):
            if (grown := path.stat(follow_symlinks=False).st_size) != size:
                size, since = grown, time.monotonic()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        file.seek(max(start, size - _MOST))
        return file.read(_MOST).decode(errors="replace")


def _py_spy(pid: int) -> str:
    program = shutil.which("py-spy")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=_SPY_S,
            check=False,
        )
        return done.stdout
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("py-spy: %s", error)
        return ""


def _work_done(pid: int | None) -> dict[str, Any]:
    """CPU seconds and bytes moved so far by a rank and all below it, such as the workers of its data loader."""
    if pid is None:
        return {}
    ticks, moved = 0, 0
    for one in (pid, *descendants(pid)):
        with suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{one}/stat").read_bytes()
            # Its own, and what children that have ended used.
            ticks += sum(map(int, stat[stat.rfind(b")") + 2 :].split()[11:15]))
        with suppress(OSError, ValueError):
            lines = Path(f"/proc/{one}/io").read_text().splitlines()
            moved += sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))
    return {"cpu_s": ticks / os.sysconf("SC_CLK_TCK"), "moved": moved}


def _from_kernel(pid: int) -> str:
    with suppress(OSError):
        where = Path(f"/proc/{pid}/wchan").read_text().strip()
        if where not in ("", "0"):
            return f"asleep in the kernel ({where}); its Python stack is not to be seen"
    doing = {"R": "busy", "D": "waiting for a disk", "Z": "dead"}.get(_state(pid), "asleep")
    return f"{doing}; its Python stack is not to be seen"


def _state(pid: int) -> str:
    return next((line.split()[1] for line in _status(pid) if line.startswith("State:")), "?")


def _status(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/status").read_text().splitlines()
    return []
