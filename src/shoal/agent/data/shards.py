"""Shards of torch.distributed.checkpoint, which may be spread over nodes: finds what belongs together without unpickling."""

from __future__ import annotations

import pickletools
from pathlib import Path

from shoal.agent.node.job_files import open_from_job

METADATA = ".metadata"
"""Name of the file that rank 0 alone writes, after all shards."""
_SHARD = ".distcp"
_MAX_BYTES = 256 << 20


def is_part(files: list[str]) -> bool:
    """Return whether these files are shards without their `.metadata`, which is on another node or not written yet."""
    return any(f.endswith(_SHARD) for f in files) and not any(_name(f) == METADATA for f in files)


def missing_shards(root: Path, files: list[str]) -> list[str]:
    """Return the shards that a `.metadata` in these files lists but that are not here, because other nodes have them."""
    named = {
        f"{folder}{shard}"
        for file in files
        if _name(file) == METADATA
        for folder in [file.removesuffix(METADATA)]
        for shard in _shards_named_in(root / file)
    }
    return sorted(named - set(files))


def _shards_named_in(metadata: Path) -> set[str]:
    """Return the names of shards in a pickle, by reading its opcodes without executing them."""
    try:
        if metadata.stat().st_size > _MAX_BYTES:
            return set()
        words = [word for _, word, _ in pickletools.genops(_read(metadata))]
    except (OSError, ValueError):
        return set()
    return {word for word in words if isinstance(word, str) and word.endswith(_SHARD)}


def _name(file: str) -> str:
    return file.rpartition("/")[2]


def _read(path: Path) -> bytes:
    with open_from_job(path) as file:
        return file.read()
