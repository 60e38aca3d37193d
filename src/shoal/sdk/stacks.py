"""Lets the agent see where this process is: on a signal, the interpreter writes the stacks of all its threads to a file.

The interpreter itself does so, without Python: also while every thread waits in a collective. Standard library only, and
run from its file by interpreters that do not know shoal.
"""

from __future__ import annotations

import os

SIGNAL = 47
"""A real-time signal nobody else uses. shoal.agent.stacks sends it only to processes that listen for it."""


def listen(folder: str, rank: int | str) -> None:
    """From now on. Where that cannot be, nothing changes."""
    try:
        import faulthandler

        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(os.path.join(folder, f"stacks-{rank}.txt"), flags, 0o600)  # noqa: PTH118
        faulthandler.register(SIGNAL, file=fd, all_threads=True)
    except (ImportError, AttributeError, OSError, RuntimeError, ValueError):
        return
