"""What a machine needs to run jobs as this server would: our own wheel, packed from what is installed here, and our versions of the rest."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from io import BytesIO
from pathlib import Path

from shoal import __version__

PACKAGES = ("shoal", "NetmindMixins", "topspin", "palframe")
EXTRAS = ("train", "hf", "s3", "tune", "machines")
"""Those of ours a machine gets if the server has them; `ray` it always gets."""
_WHEEL = "Wheel-Version: 1.0\nGenerator: shoal\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH = (2020, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Runtime:
    name: str
    """Of its folder: another content has another name."""
    wheel: bytes
    wheel_name: str
    extras: str
    constraints: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.wheel).hexdigest()


@cache
def runtime() -> Runtime:
    """The one of this process: what is installed does not change while it runs."""
    wheel, limits, extras = pack_wheel(), constraints(), ",".join(["ray", *_extras()])
    digest = hashlib.sha256(b"\0".join([wheel, limits.encode(), extras.encode()])).hexdigest()
    return Runtime(f"{__version__}-{digest[:12]}", wheel, f"shoal-{__version__}-py3-none-any.whl", extras, limits)


def constraints() -> str:
    """Every package here with its version, but for the part after + that tells builds of the same version apart."""
    found = {d.name.lower(): d.version.partition("+")[0] for d in metadata.distributions() if d.name}
    return "".join(f"{name}=={version}\n" for name, version in sorted(found.items()) if name != "shoal")


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _extras() -> list[str]:
    wanted: dict[str, list[str]] = {}
    for line in metadata.requires("shoal") or ():
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name and extra:
            wanted.setdefault(extra[1], []).append(name[0])
    return [extra for extra in EXTRAS if all(installed(name) for name in wanted.get(extra, ["?"]))]


def pack_wheel() -> bytes:
    """Packed anew from the modules themselves, so that it is the same code however it was installed; always the same bytes."""
    packed, records = BytesIO(), []
    info = f"shoal-{__version__}.dist-info"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in [*_files(), *_info(info)]:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED, compresslevel=1)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(data)}\n")
        records.append(f"{info}/RECORD,,\n")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", _EPOCH), "".join(records), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _files() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in map(Path, (spec.submodule_search_locations if spec else None) or ()):
            for path in sorted(root.rglob("*")):
                inner = path.relative_to(root)
                # What tools leave in a working copy is not ours to send.
                if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in inner.parts):
                    yield f"{package}/{inner.as_posix()}", path.read_bytes()


def _info(folder: str) -> Iterator[tuple[str, bytes]]:
    ours = metadata.distribution("shoal")
    texts = {
        "METADATA": ours.read_text("METADATA"),
        "WHEEL": _WHEEL,
        "entry_points.txt": ours.read_text("entry_points.txt"),
    }
    for name, text in texts.items():
        if text is not None:
            yield f"{folder}/{name}", text.encode()
