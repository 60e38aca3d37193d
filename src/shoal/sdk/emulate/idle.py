"""Warning at the end of a script that counted the emulated devices and left without using any.

Examples that need several GPUs print a line and exit with 0 if there are fewer, which looks like a success.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import sys
from typing import Any

_seen = {"counted": 0, "used": 0}


def counted(number: int) -> int:
    """Note that the script asked for the number of devices; return that number."""
    _seen["counted"] = number
    return number


def used() -> None:
    """Note that the script works with a device."""
    _seen["used"] = 1


def watch(torch: Any) -> None:
    """Note gradients too, and warn when the interpreter ends."""
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def noted(*args: Any, **kwargs: Any) -> Any:
        used()
        return backward(*args, **kwargs)

    torch.autograd.backward = noted
    atexit.register(_warn)


def _warn() -> None:
    if not _seen["counted"] or _seen["used"] or hasattr(sys, "last_value") or os.environ.get("RANK", "0") != "0":
        return
    times = os.times()
    # A launcher counts devices, too; its children use them.
    if multiprocessing.parent_process() is not None or times.children_user + times.children_system > 0:
        return
    devices = "one device" if _seen["counted"] == 1 else f"{_seen['counted']} devices"
    sys.stderr.write(
        f"[shoal] warning: the script found {devices} and ended without using any, so it has done nothing. If it needs more, use "
        "more workers: `shoal run --emulate-cuda --nproc N`, or `--accels N` for a job.\n"
    )
    sys.stderr.flush()
