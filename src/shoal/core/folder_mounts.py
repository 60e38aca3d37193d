"""Folders that a job sees besides its datasets: a bucket, or a folder of the machine, as `--mount FROM:/PATH[:ro|rw]` names it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from shoal.core.errors import InvalidSpec
from shoal.core.s3_url import S3Url, parse_s3_url

GRAMMAR = "s3://bucket/prefix[?endpoint=…&region=…]:/path[:ro], or /folder:/path[:ro|rw]"
KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, set with --secret"
MOST = 16
_MOUNT = re.compile(r"(?P<source>.+?):(?P<path>/[^:]*?)(?::(?P<mode>[a-z]+))?")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_TAKEN = frozenset(
    "bin boot checkpoint dev etc home input input-checkpoint lib lib32 lib64 libx32 netmind_train opt output "
    "output-checkpoint proc root run sbin shoal sys tmp usr var".split()
)
"""Top-level folders of the system and of the runtime contract, which a mount would hide."""


class FolderMount(NamedTuple):
    """One mount."""

    source: str
    """S3 URL, or absolute path of a folder of the machine."""
    path: str
    """Path at which the job sees it."""
    read_only: bool

    @property
    def bucket(self) -> S3Url | None:
        """The parts of the S3 URL; None for a folder of the machine."""
        return parse_s3_url(self.source, keys=KEYS) if "://" in self.source else None


def parse_mount(text: str) -> FolderMount:
    """Return the parts of a mount; raise InvalidSpec for anything else.

    Example:
        >>> parse_mount("s3://bucket/images:/data")
        FolderMount(source='s3://bucket/images', path='/data', read_only=True)
        >>> parse_mount("/mnt/nas:/data:rw").read_only
        False
    """
    found = _MOUNT.fullmatch(text)
    if not found or found["mode"] not in (None, "ro", "rw") or not found["source"].startswith(("s3://", "/")):
        raise InvalidSpec(f"{text!r} is not a mount: give {GRAMMAR}.", hint="--mount s3://bucket/images:/data")
    mount = FolderMount(found["source"], _checked_path(text, found["path"]), found["mode"] != "rw")
    if mount.bucket is not None and not mount.read_only:
        raise InvalidSpec(
            f"{text!r}: buckets can only be read.",
            hint="Write to /output-checkpoint, then: shoal checkpoint export JOB/NAME --destination-path s3://…",
        )
    if mount.bucket is None and (".." in mount.source.split("/") or mount.source.strip("/") == ""):
        raise InvalidSpec(f"{text!r}: give the whole path of a folder, such as /mnt/nas/images.")
    return mount


def check_mounts(texts: Sequence[str]) -> list[FolderMount]:
    """Return all mounts of a job; raise InvalidSpec if one is wrong, or inside another."""
    mounts = [parse_mount(text) for text in texts]
    for number, mount in enumerate(mounts):
        for other in mounts[:number]:
            if f"{mount.path}/".startswith(f"{other.path}/") or f"{other.path}/".startswith(f"{mount.path}/"):
                raise InvalidSpec(f"Two mounts are at {mount.path} and {other.path}: give each a folder of its own.")
    return mounts


def _checked_path(text: str, path: str) -> str:
    parts = path.strip("/").split("/")
    if not all(map(_PART.fullmatch, parts)):
        raise InvalidSpec(f"{text!r}: {path} is not a path for a mount.", hint="/data, for example")
    if parts[0] in _TAKEN:
        raise InvalidSpec(f"{text!r}: /{parts[0]} is taken in a job; mount it at another folder.", hint=":/data")
    return "/" + "/".join(parts)
