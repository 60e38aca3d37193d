"""Warn if a job has several workers and each trains a model of its own, whatever framework it uses.

Standard library only: the start-up code of the workers runs this file by its path, also where shoal cannot be imported.
"""

from __future__ import annotations

import os
import sys
from typing import Any

STEPS = 3
"""Optimizer steps before the check: a script may still be setting up during the first."""
_OTHER_WAYS = frozenset({"horovod", "hivemind", "mpi4py", "byteps", "bagua", "torch_xla"})
"""Packages that connect workers without a process group of torch."""


def watch(module: Any) -> Any:
    """Check the process group after the first steps of any optimizer; `module` is torch.optim.optimizer.

    Returns:
        The handle of the hook, or None where torch has no such hook.
    """
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        return None
    seen = 0

    def after_step(*_: Any) -> None:
        # The hook stays: torch iterates over its hooks, so none may be removed here.
        nonlocal seen
        seen += 1
        if seen == STEPS and (why := trains_alone()):
            workers, rank = os.environ.get("WORLD_SIZE"), os.environ.get("RANK", "0")
            if rank == "0":
                print(
                    f"[shoal] warning: world size {workers}, but every rank trains alone: {why}. The job trains {workers} separate "
                    "models. Connect the workers (DistributedDataParallel, or `shoal instrument SCRIPT`), or use one worker.",
                    file=sys.stderr,
                    flush=True,
                )

    return register(after_step)


def trains_alone() -> str:
    """Return why this worker is not connected to the others, or an empty string."""
    workers = os.environ.get("WORLD_SIZE", "")
    if not workers.isdigit() or int(workers) < 2 or _OTHER_WAYS & sys.modules.keys():
        return ""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return f"after {STEPS} optimizer steps there is no process group"
    size = dist.get_world_size()
    return f"the process group has {size} of {workers} ranks" if size == 1 else ""
