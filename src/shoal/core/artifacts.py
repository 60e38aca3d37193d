"""Artifacts on the wire: a manifest lists files, each a list of chunks named by BLAKE3.

Sources, datasets and checkpoints are all manifests; nothing of one is visible before it is committed.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator

from shoal.core.errors import InvalidSpec
from shoal.core.schema import Schema, Utc, View


class ArtifactKind(StrEnum):
    SOURCE = "source"
    DATASET = "dataset"
    CHECKPOINT = "checkpoint"


ChunkHash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Chunk(Schema):
    hash: ChunkHash
    """BLAKE3 of the plain bytes, lower-case hex."""
    size: int = Field(ge=0, le=1 << 40)
    """Plain bytes, before compression."""


class FileEntry(Schema):
    chunks: list[Chunk]
    executable: bool = False
    path: str
    """Relative, '/'-separated, no '.', '..' or empty parts."""
    size: int = Field(ge=0)

    @field_validator("path")
    @classmethod
    def _inside(cls, value: str) -> str:
        return check_path(value)


class Manifest(Schema):
    """Files sorted by path. Its id is the BLAKE3 of its canonical JSON, so equal trees have equal ids."""

    # Fields here and above are declared in the order of their names: that of the keys in the canonical JSON.
    files: list[FileEntry]
    version: int = 1

    @property
    def size(self) -> int:
        return sum(f.size for f in self.files)


class ArtifactView(View):
    id: str
    name: str
    kind: ArtifactKind
    version: int
    status: str
    manifest_id: str | None
    size: int
    files: int
    created_at: Utc


class MissingRequest(Schema):
    hashes: list[ChunkHash] = Field(max_length=20_000)


class MissingReply(View):
    missing: list[str]


class SourceCommit(Schema):
    manifest: Manifest
    origin: dict[str, str] = {}
    """Where it came from, for people: kind, path, url, revision."""


class SourceView(View):
    id: str
    manifest_id: str
    size: int
    files: int
    missing: list[str] = []
    """Not committed while this is non-empty: upload these chunks and commit again."""


_BAD = re.compile(r"[\x00-\x1f\x7f\\]|\A[A-Za-z]:")
_NO_NAMES = frozenset(("", ".", ".."))
_LONGEST_NAME = 255
"""Bytes; a character takes four at most."""


def check_path(path: str) -> str:
    """A safe relative path, or InvalidSpec: names are data, and become paths only through here."""
    parts = path.split("/")
    bad = (
        len(path) > 4096
        or not _NO_NAMES.isdisjoint(parts)
        or _BAD.search(path)
        or (
            len(path) > _LONGEST_NAME // 4
            and any(len(p.encode("utf-8", "surrogatepass")) > _LONGEST_NAME for p in parts)
        )
    )
    if bad:
        raise InvalidSpec(f"{path!r} is not a safe relative path.")
    return path


class GcView(View):
    manifests_removed: int
    chunks_kept: int
    chunks_removed: int
    bytes_freed: int


class Damage(View):
    kind: str
    id: str
    name: str


class CheckView(View):
    chunks: int
    size: int
    damaged_chunks: list[str]
    missing_chunks: list[str]
    hurt: list[Damage]
    """What cannot be read whole any more."""


class StoreUsageView(View):
    size: int
    """Bytes on disk, all told."""
    chunks: int
    packs: int
    manifests: int
    logical: int
    """Bytes of all artifacts, as if nothing were shared or compressed."""
    trash: int
