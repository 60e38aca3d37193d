"""Artifacts on the wire: a manifest lists files, and each file is a list of chunks named by their BLAKE3 hash.

Sources, datasets and checkpoints are all manifests; none of their content is visible before the manifest is committed.
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
    """One file of a manifest."""

    chunks: list[Chunk]
    executable: bool = False
    path: str
    """Path relative to the root, separated by '/', without '.', '..' or empty parts."""
    size: int = Field(ge=0)

    @field_validator("path")
    @classmethod
    def _inside(cls, value: str) -> str:
        return check_path(value)


class Manifest(Schema):
    """A list of files sorted by path. Its id is the BLAKE3 hash of its canonical JSON, so equal trees have equal ids."""

    # Fields here and above are declared in alphabetical order: the order of the keys in the canonical JSON.
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
    """Hashes of chunks to look up in the store."""

    hashes: list[ChunkHash] = Field(max_length=20_000)


class MissingReply(View):
    """The requested chunks that the store does not have."""

    missing: list[str]


class SourceCommit(Schema):
    """A manifest of code to store as a source."""

    manifest: Manifest
    origin: dict[str, str] = {}
    """Information for people about the origin of the code: kind, path, url, revision."""


class SourceView(View):
    id: str
    manifest_id: str
    size: int
    files: int
    missing: list[str] = []
    """Chunks the server does not have yet. While this list is not empty, the source is not committed: upload them and commit
    again."""


_BAD = re.compile(r"[\x00-\x1f\x7f\\]|\A[A-Za-z]:")
_NO_NAMES = frozenset(("", ".", ".."))
_LONGEST_NAME = 255
"""Largest length of a file name in bytes. A character takes at most four bytes."""


def check_path(path: str) -> str:
    """Return the path if it is a safe relative path, or raise InvalidSpec.

    Names in manifests are untrusted data; they are used as file system paths only after this check.
    """
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
    """Results of a garbage collection of the store."""

    manifests_removed: int
    chunks_kept: int
    chunks_removed: int
    bytes_freed: int


class Damage(View):
    """An artifact that can no longer be read completely."""

    kind: str
    id: str
    name: str


class CheckView(View):
    """Results of a check of the store."""

    chunks: int
    size: int
    damaged_chunks: list[str]
    missing_chunks: list[str]
    hurt: list[Damage]
    """Artifacts that can no longer be read completely."""


class StoreUsageView(View):
    """Disk usage of the store."""

    size: int
    """Bytes on disk in total."""
    chunks: int
    packs: int
    manifests: int
    logical: int
    """Total bytes of all artifacts, before deduplication and compression."""
    trash: int
