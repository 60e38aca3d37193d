"""Finding the checkpoint to go on from. A damaged one is never loaded and never silently passed over for a fresh start."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.errors import Corrupt, NotFound
from shoal.sdk.context import Context
from shoal.sdk.options import Options
from shoal.sdk.saving import layout

torch: Any = import_module("torch")
logger = logging.getLogger(__name__)


class Found(NamedTuple):
    path: Path | None = None
    """A whole checkpoint of ours."""
    about: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    """What the user should know: damaged ones that were passed over, or a directory that is not ours."""


def find(context: Context, options: Options) -> Found:
    """The checkpoint to resume from, verified; Corrupt if there are some but none is whole."""
    if options.resume == "never":
        return Found()
    if options.resume != "auto":
        asked = Path(os.fspath(options.resume))
        if not asked.is_dir():
            raise NotFound(f"resume={str(asked)!r}: there is no such directory.")
        return _newest_whole([asked] if layout.is_ours(asked) else layout.saved_in(asked), asked)
    if context.resume_from is not None:
        if not context.resume_from.is_dir():
            raise NotFound(f"SHOAL_RESUME_FROM={str(context.resume_from)!r}: there is no such directory.")
        return _newest_whole([context.resume_from], context.resume_from)
    found = layout.saved_in(context.output_dir)
    return _newest_whole(found, context.output_dir) if found else Found()


def read(path: Path) -> dict[str, Any]:
    """The contents of its files, on the CPU, by file name."""
    files = layout.about(path)["files"]
    return {name: torch.load(path / name, map_location="cpu", weights_only=True) for name in files}


def _newest_whole(candidates: list[Path], asked: Path) -> Found:
    if not candidates or (len(candidates) == 1 and not layout.is_ours(candidates[0])):
        return Found(notes=(f"{asked} holds no checkpoint of Shoal's: the script has to load it itself",))
    if len(candidates) == 1:
        candidates = [candidates[0], *_older(candidates[0])]
    problems: list[str] = []
    for path in candidates:
        try:
            about = layout.verify(path)
        except ValueError as error:
            problems.append(str(error))
            continue
        notes = tuple(f"{problem}; going on from {path.name} instead" for problem in problems)
        return Found(path, about, notes)
    raise Corrupt(
        f"No checkpoint can be resumed from: {'; '.join(problems)}.",
        hint='Give resume="never" to start from the beginning, or resume=PATH for another checkpoint.',
    )


def _older(path: Path) -> list[Path]:
    step = layout.step_of(path)
    if step is None:
        return []
    return [other for other in layout.saved_in(path.parent) if (layout.step_of(other) or 0) < step]
