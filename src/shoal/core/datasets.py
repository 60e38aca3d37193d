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
    """The server itself is fetching it from a URL."""
    AVAILABLE = "available"
    ERROR = "error"


class DatasetBegin(Schema):
    """Announce a new version; its content follows."""

    name: str
    origin: dict[str, str] = {}
    """Where it came from, for people."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "dataset name")


class DatasetImport(DatasetBegin):
    """Have the server fetch it: http(s)://, s3:// or hf://."""

    url: str = Field(max_length=4096)
    credentials: dict[str, str] = Field(default={}, max_length=10)
    """Environment name → secret name, e.g. AWS_SECRET_ACCESS_KEY → my-s3-secret, or HF_TOKEN → my-hub-token."""


class DatasetFail(Schema):
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
    """The answer to a manifest: what is still missing, or the version it became."""

    missing: list[str] = []
    dataset: DatasetView | None = None
    unchanged: bool = False
    """It equals the newest version; no new one was made."""


class FileView(View):
    path: str
    size: int


class FetchRequest(Schema):
    """Ask for many chunks in one answer, framed as for uploads."""

    hashes: list[ChunkHash] = Field(min_length=1, max_length=2_000)


def split_version(text: str) -> tuple[str, int | None]:
    match = _VERSIONED.fullmatch(text)
    if match is None:
        raise InvalidName(f"{text!r} is not a dataset: give NAME or NAME@VERSION.")
    version = match["version"]
    return match["name"], int(version) if version else None
