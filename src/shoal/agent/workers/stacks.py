"""Reports where each worker of this node is now: its Python stack if available, else its state in the kernel."""

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
from shoal.agent.workers import frames, runtime
from shoal.agent.workers.parent import descendants

logger = logging.getLogger(__name__)

SIGNAL = 47
"""Copy of shoal.sdk.stacks.SIGNAL, which the agent must not import."""
_WAIT_S = 3.0
_SETTLED_S = 0.1
"""Seconds without growth after which a dump is complete: the interpreter writes it in one go."""
_MOST = 256 << 10
_SPY_S = 10.0
_STOPPED = "Tt"
_OURS = os.path.dirname(os.path.abspath(shoal.__file__))  # noqa: PTH100, PTH120


def gather(root_pid: int, ranks: Iterable[int], folder: Path, source: Path) -> list[dict[str, Any]]:
    """Return core.stacks.RankStack of each rank. The workers write their stacks to `folder`; all are signalled at once."""
    found = rank_processes(root_pid)
    starts = {
        rank: _request_dump(pid, folder / f"stacks-{rank}.txt")
        for rank in ranks
        if (pid := found.get(rank)) is not None
    }
    deadline = time.monotonic() + _WAIT_S
    return [
        _describe_rank(rank, found.get(rank), starts.get(rank), folder, source, deadline) | _work_done(found.get(rank))
        for rank in ranks
    ]


def rank_processes(root_pid: int) -> dict[int, int]:
    """Return rank → pid. If several processes below `root_pid` carry a rank, the topmost one counts."""
    found: dict[int, int] = {}
    for pid in descendants(root_pid):
        with suppress(OSError, ValueError):
            env = dict(e.partition(b"=")[::2] for e in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
            # Workers of a launcher inherit SHOAL_RANK from it, but have a RANK of their own, which takes precedence.
            rank = env.get(b"RANK", env.get(runtime.RANK.encode()))
            if rank is not None:
                found.setdefault(int(rank), pid)
    return found


def _request_dump(pid: int, file: Path) -> int | None:
    """Signal a process to write its stacks; return their offset in the file, or None if it does not handle the signal."""
    try:
        caught = next(line for line in _status(pid) if line.startswith("SigCgt:")).split()[1]
        if not int(caught, 16) >> (SIGNAL - 1) & 1 or _state(pid) in _STOPPED:
            return None
        start = file.stat().st_size
        os.kill(pid, SIGNAL)
        return start
    except (OSError, StopIteration, ValueError):
        return None


def _describe_rank(
    rank: int, pid: int | None, start: int | None, folder: Path, source: Path, deadline: float
) -> dict[str, Any]:
    if pid is None:
        return {"rank": rank, "note": "without a process"}
    if (state := _state(pid)) in _STOPPED:
        # Lower case: a debugger holds the process, and its user will continue it.
        return {"rank": rank, "note": "stopped by a signal (SIGSTOP), and cannot answer", "stopped": state == "T"}
    stack = frames.from_faulthandler(_read(folder / f"stacks-{rank}.txt", start, deadline)) if start is not None else []
    stack = stack or frames.from_py_spy(_py_spy(pid))
    if not stack:
        return {"rank": rank, "note": _from_kernel(pid)}
    return {"rank": rank, **frames.describe(stack, str(source), _OURS)}


def _read(path: Path, start: int, deadline: float) -> str:
    """Return the text written after `start`, once it is complete. The file belongs to the job and is not trusted."""
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
    """Return the CPU seconds and I/O bytes so far of a rank and all processes below it, such as its DataLoader workers."""
    if pid is None:
        return {}
    ticks, moved = 0, 0
    for one in (pid, *descendants(pid)):
        with suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{one}/stat").read_bytes()
            # Its own user and system time, and that of its children that have ended.
            ticks += sum(map(int, stat[stat.rfind(b")") + 2 :].split()[11:15]))
        with suppress(OSError, ValueError):
            lines = Path(f"/proc/{one}/io").read_text().splitlines()
            moved += sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))
    return {"cpu_s": ticks / os.sysconf("SC_CLK_TCK"), "moved": moved}


def _from_kernel(pid: int) -> str:
    with suppress(OSError):
        where = Path(f"/proc/{pid}/wchan").read_text().strip()
        if where not in ("", "0"):
            return f"asleep in the kernel ({where}); its Python stack is not available"
    doing = {"R": "busy", "D": "waiting for a disk", "Z": "dead"}.get(_state(pid), "asleep")
    return f"{doing}; its Python stack is not available"


def _state(pid: int) -> str:
    return next((line.split()[1] for line in _status(pid) if line.startswith("State:")), "?")


def _status(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/status").read_text().splitlines()
    return []
