"""Checkpoints of the Hugging Face Trainer: find the one to resume from, and copy finished ones to the output directory."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

MARK = "shoal_job.json"
"""File in each checkpoint that names the job that wrote it."""
_STATE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def last_checkpoint(output_dir: str | os.PathLike[str] | None = None) -> str | None:
    """Return the Trainer checkpoint to resume from, or None at the first start.

    It is the checkpoint of the platform (SHOAL_RESUME_FROM), else the newest finished one in `output_dir`, else the newest
    one in OUTPUT_DIR.

    Example: `trainer.train(resume_from_checkpoint=last_checkpoint())`
    """
    given = os.environ.get("SHOAL_RESUME_FROM")
    for folder in (given, output_dir, os.environ.get("OUTPUT_DIR") if os.environ.get("SHOAL_SPOOL") else None):
        if folder and (found := newest(Path(folder))) is not None:
            return str(found)
    return None


def newest(folder: Path) -> Path | None:
    """Return the folder itself if it is a finished checkpoint, else the newest one in it, or None."""
    if (folder / _STATE).is_file():
        return folder
    found = [p for p in (folder.iterdir() if folder.is_dir() else ()) if _NAME.fullmatch(p.name)]
    whole = [p for p in found if (p / _STATE).is_file()]
    return max(whole, key=_step, default=None)


def is_own(checkpoint: Path) -> bool:
    """Check whether this job wrote the checkpoint, in an earlier attempt."""
    try:
        job = json.loads((checkpoint / MARK).read_text()).get("job")
    except (OSError, ValueError, AttributeError):
        return False
    return bool(job) and job == os.environ.get("SHOAL_JOB_ID")


def mark(checkpoint: Path) -> None:
    if job := os.environ.get("SHOAL_JOB_ID"):
        aside = checkpoint / f".{MARK}.tmp"
        aside.write_text(json.dumps({"job": job, "attempt": os.environ.get("SHOAL_ATTEMPT")}))
        aside.replace(checkpoint / MARK)


def mirror(source: Path, output: Path) -> None:
    """Link or copy the finished checkpoints of `source` to `output`, each complete or not at all.

    Checkpoints that no longer exist in `source` are removed from `output` too.
    """
    output.mkdir(parents=True, exist_ok=True)
    there = {p.name for p in source.iterdir() if _NAME.fullmatch(p.name) and (p / _STATE).is_file()}
    for name in sorted(there, key=lambda n: _step(Path(n))):
        if not (output / name).exists():
            aside = output / f".tmp-{name}"
            shutil.rmtree(aside, ignore_errors=True)
            shutil.copytree(source / name, aside, copy_function=_link_or_copy)
            aside.rename(output / name)
    for copy in output.iterdir():
        if _NAME.fullmatch(copy.name) and copy.name not in there:
            shutil.rmtree(copy, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1
