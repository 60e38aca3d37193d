"""Datasets on the wire: named, versioned, immutable. `NAME` means the newest version, `NAME@3` the third."""

from __future__ import annotations

import re
from enum import StrEnum

from pydantic import Field, field_validator

from shoal.core.artifacts import ChunkHash
from shoal.core.errors import InvalidName
from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View

_VERSIONED = re.compile(r"(?P<name>[^@]+)(?:@(?P<version>[1-9]\d{0,8}))?")


class DatasetStatus(StrEnum):
    UPLOADING = "uploading"
    IMPORTING = "importing"
    """The server is fetching it from a URL."""
    AVAILABLE = "available"
    ERROR = "error"


class DatasetBegin(Schema):
    """Announcement of a new version of a dataset. Its content follows."""

    name: str
    origin: dict[str, str] = {}
    """Information for people about the origin of the data."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "dataset name")


class DatasetImport(DatasetBegin):
    """A request to the server to fetch a new version from a URL: http(s)://, s3:// or hf://."""

    url: str = Field(max_length=4096)
    credentials: dict[str, str] = Field(default={}, max_length=10)
    """Environment name → secret name, e.g. AWS_SECRET_ACCESS_KEY → my-s3-secret, or HF_TOKEN → my-hub-token."""


class DatasetFail(Schema):
    """Report that an upload has failed."""

    error: str = Field(max_length=1000)


class DatasetView(View):
    id: str
    name: str
    version: int
    status: DatasetStatus
    size: int
    files: int
    manifest_id: str | None
    origin: dict[str, str]
    error: str | None
    created_by: str
    created_at: Utc
    available_at: Utc | None


class DatasetCommitted(View):
    """The answer to a manifest: the chunks that are still missing, or the new version."""

    missing: list[str] = []
    """Chunks the server does not have yet. While this list is not empty, nothing is committed: upload them and commit again."""
    dataset: DatasetView | None = None
    unchanged: bool = False
    """True if the content equals the newest version, so no new version was made."""


class FileView(View):
    """One file of a dataset or checkpoint."""

    path: str
    size: int


class FetchRequest(Schema):
    """A request for many chunks in one answer, in the same framing as uploads."""

    hashes: list[ChunkHash] = Field(min_length=1, max_length=2_000)


def split_version(text: str) -> tuple[str, int | None]:
    """Split `NAME` or `NAME@VERSION` into the name and the version (None for the newest); raise InvalidName otherwise."""
    match = _VERSIONED.fullmatch(text)
    if match is None:
        raise InvalidName(f"{text!r} is not a dataset: give NAME or NAME@VERSION.")
    version = match["version"]
    return match["name"], int(version) if version else None
