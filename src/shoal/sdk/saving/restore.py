"""Find the checkpoint to resume from. A damaged one is never loaded, and never silently ignored to start from zero."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from shoal.core.errors import Corrupt, NotFound, Refused
from shoal.sdk.context import Context
from shoal.sdk.options import Options
from shoal.sdk.saving import layout
from shoal.sdk.saving.shards import INDEX, SKELETON, Shards

torch: Any = import_module("torch")
logger = logging.getLogger(__name__)


class Found(NamedTuple):
    path: Path | None = None
    """Complete checkpoint that Shoal wrote, or None."""
    about: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    """Notes for the user: damaged checkpoints that were skipped, or a directory that Shoal did not write."""


class Exchange(Protocol):
    """Exchange of values between the ranks. All of them make the same calls."""

    rank: int

    def gather(self, value: Any) -> list[Any]: ...
    def from_main(self, value: Any) -> Any: ...


def candidates(context: Context, options: Options) -> list[Path]:
    """Return the checkpoints to resume from, best first; [] for a start from the beginning. Raise NotFound for a wrong path."""
    if options.resume == "never":
        return []
    if options.resume != "auto":
        asked = Path(os.fspath(options.resume))
        if not asked.is_dir():
            raise NotFound(f"resume={str(asked)!r}: there is no such directory.")
        return _with_older([asked] if layout.is_ours(asked) else layout.saved_in(asked), asked)
    if context.resume_from is not None:
        if not context.resume_from.is_dir():
            raise NotFound(f"SHOAL_RESUME_FROM={str(context.resume_from)!r}: there is no such directory.")
        return _with_older([context.resume_from], context.resume_from)
    found = layout.saved_in(context.output_dir)
    return _with_older(found, context.output_dir) if found else []


def choose(found: list[Path], exchange: Exchange) -> Found:
    """Return the first complete checkpoint. Raise Corrupt if there are some but none is complete. Collective.

    A whole checkpoint is verified by rank 0. The files of a sharded one are divided among the ranks that see them.
    """
    if not found:
        return Found()
    if len(found) == 1 and exchange.from_main(not layout.is_ours(found[0])):
        return Found(notes=(f"{found[0]} holds no checkpoint written by Shoal: the script has to load it itself",))
    problems: list[str] = []
    for path in found:
        said, problem = exchange.from_main(_about(path) if exchange.rank == 0 else None)
        if not problem and layout.is_sharded(said):
            problem = _problem_of_shards(path, said, exchange)
        elif not problem:
            problem = exchange.from_main(_problem(path, said["files"]) if exchange.rank == 0 else None)
        if not problem:
            notes = tuple(f"{earlier}; resuming from {path.name} instead" for earlier in problems)
            return Found(path, said, notes)
        problems.append(problem)
    raise Corrupt(
        f"No checkpoint can be resumed from: {'; '.join(problems)}.",
        hint='Pass resume="never" to shoal.init to start from the beginning, or resume=PATH for another checkpoint.',
    )


def read_lists(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the skeleton of a sharded checkpoint and the index of its tensors."""
    skeleton = torch.load(path / SKELETON, map_location="cpu", weights_only=True)
    return skeleton, json.loads((path / INDEX).read_bytes())


def read_file(path: Path, name: str) -> Any:
    """Load one file of a checkpoint to the CPU; None if the checkpoint has no such file. Raise Refused if it is gone.

    The files of a sharded checkpoint that a whole one would have (model.pt, optimizer.pt) are put together.
    """
    try:
        said = layout.about(path)
        if layout.is_sharded(said) and name not in said["files"]:
            skeleton = torch.load(path / SKELETON, map_location="cpu", weights_only=True)
            return Shards.open(path).filled(skeleton[name]) if name in skeleton else None
        if name not in said["files"]:
            return None
        return torch.load(path / name, map_location="cpu", weights_only=True)
    except (OSError, ValueError) as error:
        raise Refused(
            f"The checkpoint {path} can no longer be read: {error}",
            hint="Pass all models and optimizers to run.prepare before the first step.",
        ) from error


def _about(path: Path) -> tuple[dict[str, Any], str]:
    try:
        return layout.about(path), ""
    except ValueError as error:
        return {}, str(error)


def _problem(path: Path, files: Mapping[str, Any]) -> str:
    """Return the first difference between files and what shoal.json says of them, or ""."""
    try:
        for name, expected in files.items():
            layout.verify_file(path / name, expected)
    except ValueError as error:
        return str(error)
    return ""


def _problem_of_shards(path: Path, said: Mapping[str, Any], exchange: Exchange) -> str:
    files = layout.files_of(said)
    seen = exchange.gather([name for name in files if (path / name).exists()])
    readers = {name: [rank for rank, names in enumerate(seen) if name in names] for name in files}
    if absent := [name for name, ranks in readers.items() if not ranks]:
        return f"{path / absent[0]} cannot be read by any worker"
    mine = {
        name: files[name]
        for number, (name, ranks) in enumerate(readers.items())
        if ranks[number % len(ranks)] == exchange.rank
    }
    return next(filter(None, exchange.gather(_problem(path, mine))), "")


def _with_older(found: list[Path], asked: Path) -> list[Path]:
    if not found:
        return [asked]
    step = layout.step_of(found[0])
    if len(found) > 1 or step is None or not layout.is_ours(found[0]):
        return found
    older = [other for other in layout.saved_in(found[0].parent) if (layout.step_of(other) or 0) < step]
    return [found[0], *older]
