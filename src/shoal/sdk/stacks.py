"""Stack traces for the agent: on a signal, the interpreter writes the stacks of all its threads to a file.

The interpreter's C code does this, so it also works while every thread waits in a collective. Standard library only: this
file is also run by interpreters that cannot import shoal.
"""

from __future__ import annotations

import os

from shoal.core import system

SIGNAL = 47
"""Real-time signal that nothing else uses. shoal.agent.workers.stacks sends it only to processes that handle it."""


def listen(folder: str, rank: int | str) -> None:
    """Write the stacks to a file in `folder` whenever SIGNAL arrives. Does nothing where that is not supported."""
    try:
        import faulthandler

        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | system.CLOEXEC | system.NOFOLLOW
        fd = os.open(os.path.join(folder, f"stacks-{rank}.txt"), flags, 0o600)  # noqa: PTH118
        faulthandler.register(SIGNAL, file=fd, all_threads=True)
    except (ImportError, AttributeError, OSError, RuntimeError, ValueError):
        return
