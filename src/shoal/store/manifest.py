"""Manifests: canonical bytes, id, and validation."""

from __future__ import annotations

from collections.abc import Iterator

from blake3 import blake3
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from shoal.core.artifacts import Manifest, check_path
from shoal.core.errors import InvalidSpec
from shoal.store.hashing import MAX_CHUNK


def manifest_id(manifest: Manifest) -> str:
    """Return the BLAKE3 hash of the canonical JSON. Equal trees have equal ids on every machine and in every version."""
    return str(blake3(dump_manifest(manifest)).hexdigest())


def dump_manifest(manifest: Manifest) -> bytes:
    """Return the canonical JSON that is hashed and stored: files sorted by path, keys sorted, no spaces, UTF-8."""
    files = sorted(manifest.files, key=lambda f: f.path)
    try:
        return manifest.model_copy(update={"files": files}).model_dump_json().encode()
    except PydanticSerializationError as error:
        raise InvalidSpec("A file name in the manifest is not valid Unicode.") from error


def load_manifest(data: bytes) -> Manifest:
    """Parse and validate a manifest; raise InvalidSpec if it is not well-formed."""
    try:
        return check_manifest(Manifest.model_validate_json(data))
    except ValidationError as error:
        raise InvalidSpec(f"Not a manifest: {error.errors()[0]['msg']}.") from error


def check_manifest(manifest: Manifest) -> Manifest:
    """Return a valid manifest; raise InvalidSpec for duplicate paths, a file that is also a folder, or wrong sizes."""
    if manifest.version != 1:
        raise InvalidSpec(
            f"This manifest has version {manifest.version}; this Shoal reads version 1.", hint="Upgrade Shoal."
        )
    files: set[str] = set()
    folders: set[str] = set()
    for f in manifest.files:
        check_path(f.path)
        if f.path in files:
            raise InvalidSpec(f"The manifest lists {f.path!r} twice.")
        files.add(f.path)
        folder = f.path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
        sizes = [c.size for c in f.chunks]
        if sum(sizes) != f.size:
            raise InvalidSpec(f"The manifest's chunks of {f.path!r} do not add up to its size.")
        if sizes and not 0 < min(sizes) <= max(sizes) <= MAX_CHUNK:
            raise InvalidSpec(f"{f.path!r} has an empty chunk or one above {MAX_CHUNK >> 20} MiB.")
    if clash := files & folders:
        raise InvalidSpec(f"{min(clash)!r} is both a file and a folder in the manifest.")
    return manifest


def chunk_hashes(manifest: Manifest) -> Iterator[str]:
    """Yield every chunk hash once, in file order."""
    seen: set[str] = set()
    for f in manifest.files:
        for c in f.chunks:
            if c.hash not in seen:
                seen.add(c.hash)
                yield c.hash
