"""Checkpoints of Lightning's Trainer: find the one to resume from, and link finished ones into the output directory."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import zipfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.sdk.saving.layout import discard, write_about

logger = logging.getLogger(__name__)

SUFFIX = ".ckpt"
HIDDEN = ".lightning"
"""Folder in OUTPUT_DIR for the Trainer's own files. The platform ignores it; finished checkpoints are linked beside it."""


def last_checkpoint() -> str | None:
    """Return the `.ckpt` file to resume from, in the platform's checkpoint (SHOAL_RESUME_FROM); None at the first start.

    Example, for a Trainer without the callback: `trainer.fit(module, ckpt_path=last_checkpoint())`
    """
    given = os.environ.get("SHOAL_RESUME_FROM")
    found = newest(Path(given)) if given else None
    return None if found is None else str(found)


def newest(folder: Path) -> Path | None:
    """Return the resumable checkpoint with the highest step in a folder or its subfolders, or None."""
    steps = {path: step for path in sorted(folder.rglob(f"*{SUFFIX}")) if (step := _step_of(path)) is not None}
    return max(steps, key=lambda path: steps[path], default=None)


def output_dir() -> Path | None:
    """Return the output directory of the job; None outside a job."""
    output = os.environ.get("OUTPUT_DIR") if os.environ.get("SHOAL_SPOOL") else None
    return Path(output) if output else None


def is_written(checkpoint: Path) -> bool:
    """Check whether a checkpoint is complete: some are written in the background, some are folders of shards."""
    return checkpoint.is_dir() or zipfile.is_zipfile(checkpoint)


def publish(checkpoint: Path, output: Path, step: int, metrics: Mapping[str, float]) -> Path | None:
    """Link a finished checkpoint into the output directory with its step and metrics, complete or not at all.

    Return its folder; None if there is already one of this step.
    """
    final = output / f"lightning-step-{step:09d}"
    if final.exists():
        return None
    aside = output / f".tmp-{final.name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    target = aside / checkpoint.name
    if checkpoint.is_dir():
        shutil.copytree(checkpoint, target, copy_function=_link_or_copy)
    else:
        _link_or_copy(str(checkpoint), str(target))
    files = [path for path in sorted(aside.rglob("*")) if path.is_file()]
    sizes = {str(path.relative_to(aside)): {"size": path.stat().st_size} for path in files}
    write_about(aside, {"kind": "lightning", "step": step, "metrics": dict(metrics), "files": sizes})
    aside.rename(final)
    return final


def withdraw(published: dict[Path, Path]) -> None:
    """Remove published checkpoints whose originals the Trainer has deleted; always keep the newest one."""
    for original, folder in list(published.items())[:-1]:
        if not original.exists():
            discard(folder)
            del published[original]


def _step_of(checkpoint: Path) -> int | None:
    """Return the global step of a checkpoint; None if no training can be resumed from it."""
    torch: Any = import_module("torch")
    file = checkpoint / "meta.pt" if checkpoint.is_dir() else checkpoint
    try:
        # Unpickling is acceptable: the Trainer will load the same file, which the job itself wrote.
        loaded = torch.load(file, map_location="cpu", mmap=True, weights_only=False)
        step = int(loaded["global_step"])
    except Exception as error:
        logger.warning("%s cannot be resumed from: %s", checkpoint, error)
        return None
    if checkpoint.is_file() and "optimizer_states" not in loaded:
        logger.warning("%s cannot be resumed from: it holds weights only", checkpoint)
        return None
    return step


def _link_or_copy(source: str, target: str) -> str:
    with contextlib.suppress(OSError):
        os.link(source, target)
        return target
    return str(shutil.copy2(source, target))
