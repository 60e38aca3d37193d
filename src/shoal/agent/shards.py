"""Checkpoints of torch.distributed.checkpoint, each rank's shard on its own node: what belongs together, without unpickling anything."""

from __future__ import annotations

import pickletools
from pathlib import Path

METADATA = ".metadata"
"""Written last, where rank 0 is, and by it alone."""
_SHARD = ".distcp"
_MAX_BYTES = 256 << 20


def is_part(files: list[str]) -> bool:
    """Shards whose `.metadata` is on another node, or not written yet."""
    return any(f.endswith(_SHARD) for f in files) and not any(_name(f) == METADATA for f in files)


def lacking(root: Path, files: list[str]) -> list[str]:
    """Shards that a `.metadata` among these files names and that are not among them: other nodes have them."""
    named = {
        f"{folder}{shard}"
        for file in files
        if _name(file) == METADATA
        for folder in [file.removesuffix(METADATA)]
        for shard in _shards_named_in(root / file)
    }
    return sorted(named - set(files))


def _shards_named_in(metadata: Path) -> set[str]:
    """The strings of a pickle, read and not run."""
    try:
        if metadata.stat().st_size > _MAX_BYTES:
            return set()
        words = [word for _, word, _ in pickletools.genops(metadata.read_bytes())]
    except (OSError, ValueError):
        return set()
    return {word for word in words if isinstance(word, str) and word.endswith(_SHARD)}


def _name(file: str) -> str:
    return file.rpartition("/")[2]
