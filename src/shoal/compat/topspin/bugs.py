"""Files of a failed step in TopSpin's format, in the folder bug of a run: the batch, the local variables and the model.

They are copied from the step's capsule, with which `shoal replay` runs the step again. A run is never restored from them.
"""

from __future__ import annotations

import fcntl
import pickle
from pathlib import Path
from typing import Any

from shoal.agent.data.bug_capsules import capsules_in
from shoal.compat.topspin.batches import as_call
from shoal.compat.topspin.logs import Logger
from shoal.compat.topspin.param import ParamBase


def keep(param: ParamBase, capsules: Path, *, rank: int, seen: int) -> None:
    """Write the files from this worker's newest capsule, if there is one."""
    import torch

    own = [path for path in capsules_in(capsules) if path.name.endswith(f"-rank-{rank}")]
    if not own:
        return
    newest, folder = own[-1], Path(param.path_bug)
    found: dict[str, Any] = {}
    for name in ("batch", "locals", "model"):
        if (newest / f"{name}.pt").is_file():
            found[name] = torch.load(newest / f"{name}.pt", map_location="cpu", weights_only=False)
    with Path(param.bug_lock_file).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if "batch" in found:
            args, kwargs = as_call(found["batch"])
            _write(folder / f"batch.{seen}.rank_{rank}.pkl", {"args": list(args), "kwargs": dict(kwargs)})
        if "locals" in found:
            _write(folder / f"local_vars.{seen}.rank_{rank}.pkl", found["locals"])
        if "model" in found:
            torch.save(
                {"model_seen_sample_num": seen, "model": found["model"]}, folder / f"model_{seen}.rank_{rank}.pt"
            )
    Logger.error(f"Exit training abnormally. Check your bug folder {folder}, or replay the step: shoal replay {newest}")


def _write(path: Path, value: Any) -> None:
    path.write_bytes(pickle.dumps(value))
