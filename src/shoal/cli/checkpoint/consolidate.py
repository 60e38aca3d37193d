"""`shoal checkpoint consolidate`: one safetensors file from a checkpoint, sharded or whole."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from shoal.cli.checkpoint.show import folder_name
from shoal.cli.shared.format import plural, size
from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect
from shoal.core.errors import BY_CODE, Internal, MissingExtra, ShoalError


def consolidate(
    checkpoint: str,
    /,
    *,
    destination: Annotated[Path | None, Parameter(name=("--destination", "-d"))] = None,
    model: int = 0,
) -> None:
    """Write the weights of a checkpoint of shoal.init as one model.safetensors.

    The parts that the workers of a sharded model saved are put together, one
    tensor at a time. The folder of a Hugging Face model has its config.json
    as well: AutoModel.from_pretrained loads it. Needs torch on this machine.

    For example:

      shoal checkpoint consolidate hello/step-000000500 --destination ./hello
      shoal checkpoint consolidate shoal-runs/train-1/checkpoints/step-000000500

    Parameters
    ----------
    checkpoint
        Folder of a checkpoint on this machine; or id, pushed name or JOB/NAME of one on the server.
    destination
        Folder to make (default: NAME-model, in the current folder).
    model
        Number of the model, if the script prepared several (from 0).
    """
    local = Path(checkpoint)
    if local.is_dir():
        done = _run(local, destination or Path(f"{local.resolve().name}-model"), model)
    else:
        done = _of_server(checkpoint, destination, model)
    out.show(done, lambda: out.line(done["path"]))
    out.info(f"Step {done['step']}: {plural(done['tensors'], 'tensor')}, {size(done['size'])}.")


def _of_server(reference: str, destination: Path | None, model: int) -> dict[str, Any]:
    from shoal.cli.shared.fetching import fetch_with_bar

    with connect() as client:
        view = client.checkpoints.get(reference)
        target = destination or Path(f"{folder_name(view)}-model")
        # Each node has captured the parts of its own workers.
        same = [] if view.job is None else client.checkpoints.list(view.job)
        others = [c for c in same if (c.name, c.attempt) == (view.name, view.attempt) and c.node != view.node]
        with tempfile.TemporaryDirectory(prefix=".shoal-consolidate-", dir=target.absolute().parent) as folder:
            for part in (*others, view):
                fetch_with_bar(client.checkpoints, part.id, part.size, Path(folder), force=True)
            return _run(Path(folder), target, model)


def _run(checkpoint: Path, folder: Path, model: int) -> dict[str, Any]:
    """Consolidate in a separate process, as this one must not import torch."""
    command = [sys.executable, "-m", "shoal.sdk.saving.consolidate", str(checkpoint), str(folder), str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "No module named 'torch'" in done.stderr:
        raise MissingExtra("Consolidating a checkpoint needs torch on this machine.", hint="pip install 'shoal[train]'")
    if done.returncode:
        raise Internal(f"The checkpoint could not be consolidated: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    if "error" in found:
        raise BY_CODE.get(found["error"], ShoalError)(found["message"], hint=found["hint"])
    return found
