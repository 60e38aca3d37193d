"""Wheels made of what is installed here: the same code, in the same version, however it was installed. Bytes are reproducible."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import metadata
from io import BytesIO
from pathlib import Path

from shoal import __version__
from shoal.core.install import COMPAT, PACKAGE

OURS = ("shoal",)
COMPAT_MODULES = ("NetmindMixins", "topspin", "palframe")
_WHEEL = "Wheel-Version: 1.0\nGenerator: shoal\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH = (2020, 1, 1, 0, 0, 0)
_COMPAT_SCRIPTS = {"flexai": "shoal.cli.main:main", "palframe": "shoal.compat.topspin.palframe_cli:main"}
_NOT_PACKED = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}


def own_distribution() -> metadata.Distribution:
    """Return the metadata of this installation, which had another name before it was split in two."""
    try:
        return metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return metadata.distribution("shoal")


def file_name(name: str) -> str:
    return f"{name.replace('-', '_')}-{__version__}-py3-none-any.whl"


def pack_own(packages: Sequence[str] = OURS) -> bytes:
    """Pack `shoal-train` from the installed modules; a machine of the pool gets those for other platforms in it, too."""
    ours = own_distribution()
    about = re.sub(r"(?m)^Name: .*$", f"Name: {PACKAGE}", ours.read_text("METADATA") or "", count=1)
    scripts = ours.read_text("entry_points.txt") or ""
    if list(packages) == list(OURS):
        scripts = "\n".join(
            line for line in scripts.splitlines() if line.partition("=")[0].strip() not in _COMPAT_SCRIPTS
        )
    return _pack(PACKAGE, _modules(packages), about, f"{scripts.strip()}\n")


def pack_compat() -> bytes:
    about = f"Metadata-Version: 2.1\nName: {COMPAT}\nVersion: {__version__}\nRequires-Python: >=3.11\nRequires-Dist: {PACKAGE}\n"
    scripts = "".join(f"{name} = {target}\n" for name, target in _COMPAT_SCRIPTS.items())
    return _pack(COMPAT, _modules(COMPAT_MODULES), about, f"[console_scripts]\n{scripts}")


def dependencies() -> dict[str, metadata.Distribution]:
    """Return normalized name → distribution of the installed packages that the client needs, directly and in turn."""
    return dict(_dependencies())


@cache
def _dependencies() -> tuple[tuple[str, metadata.Distribution], ...]:
    found: dict[str, metadata.Distribution] = {}
    todo = list(own_distribution().requires or ())
    while todo:
        line = todo.pop()
        named = re.match(r"[A-Za-z0-9._-]+", line)
        if named is None or re.search(r";.*\bextra\s*==", line) or (name := normal(named[0])) in found:
            continue
        try:
            one = metadata.distribution(named[0])
        except metadata.PackageNotFoundError:
            continue  # for another platform
        if one.read_text("direct_url.json") is None and one.files:
            found[name] = one
        todo += one.requires or ()
    return tuple(sorted(found.items()))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def repacked_name(one: metadata.Distribution) -> str:
    """Return the file name of a wheel with the tags it was installed with."""
    tags = re.findall(r"(?m)^Tag: (\w+)-(\w+)-([\w.]+)\s*$", one.read_text("WHEEL") or "") or [("py3", "none", "any")]
    joined = "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))
    return f"{re.sub(r'[-_.]+', '_', one.metadata['Name'])}-{one.version}-{joined}.whl"


def repack(one: metadata.Distribution) -> bytes:
    """Pack an installed package into a wheel again, without its commands' start scripts, which pip makes."""
    info = next(file.parts[0] for file in one.files or () if file.parts[0].endswith(".dist-info"))
    files = (
        (path.as_posix(), Path(str(path.locate())).read_bytes())
        for path in one.files or ()
        if ".." not in path.parts and "__pycache__" not in path.parts
        if not (path.parts[0] == info and path.name in _NOT_PACKED)
    )
    return _archive(files, info)


def _modules(packages: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for package in packages:
        spec = importlib.util.find_spec(package)
        for root in map(Path, (spec.submodule_search_locations if spec else None) or ()):
            for path in sorted(root.rglob("*")):
                inner = path.relative_to(root)
                # Hidden files and caches in a working copy are not part of the package.
                if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in inner.parts):
                    yield f"{package}/{inner.as_posix()}", path.read_bytes()


def _pack(name: str, files: Iterator[tuple[str, bytes]], about: str, scripts: str) -> bytes:
    info = f"{name.replace('-', '_')}-{__version__}.dist-info"
    texts = {"METADATA": about, "WHEEL": _WHEEL, "entry_points.txt": scripts}
    return _archive([*files, *((f"{info}/{key}", text.encode()) for key, text in texts.items())], info)


def _archive(files: Iterable[tuple[str, bytes]], info: str) -> bytes:
    packed, records = BytesIO(), []
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED, compresslevel=1)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(data)}\n")
        records.append(f"{info}/RECORD,,\n")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", _EPOCH), "".join(records), zipfile.ZIP_DEFLATED)
    return packed.getvalue()
