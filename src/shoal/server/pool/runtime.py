"""Runtime for machines of the pool: a wheel of the Shoal that is installed here, and the versions of its dependencies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from types import MappingProxyType

from shoal import __version__
from shoal.core.errors import InvalidSpec
from shoal.core.install import COMPAT, PACKAGE
from shoal.core.money import KINDS
from shoal.core.settings import ServerSettings
from shoal.engines.kinds import pool_kind
from shoal.server.packages import wheels

_OWN = {PACKAGE, COMPAT, "shoal"}
EXTRAS = ("train", "hf", "s3", "tune", "machines")
"""Shoal's extras that a machine gets if the server has them, besides those that the pool's engine needs."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """Packages that are installed on machines."""

    name: str
    """Name of its folder; it contains a hash of the contents."""
    wheel: bytes
    wheel_name: str
    extras: str
    constraints: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.wheel).hexdigest()


@cache
def runtime() -> Runtime:
    """Return the runtime of this process; cached, as the installed packages do not change while it runs."""
    wheel, limits, extras = (
        wheels.pack_own([*wheels.OURS, *wheels.COMPAT_MODULES]),
        constraints(),
        ",".join([*pool_kind().extras, *_extras()]),
    )
    digest = hashlib.sha256(b"\0".join([wheel, limits.encode(), extras.encode()])).hexdigest()
    return Runtime(f"{__version__}-{digest[:12]}", wheel, wheels.file_name(PACKAGE), extras, limits)


def pack_wheel() -> bytes:
    """Pack the wheel that machines install: Shoal, and the modules for scripts of other platforms."""
    return wheels.pack_own([*wheels.OURS, *wheels.COMPAT_MODULES])


def constraints() -> str:
    """Return every installed package with its version, without the local part after "+" (which names a build)."""
    found = {d.name.lower(): d.version.partition("+")[0] for d in metadata.distributions() if d.name}
    return "".join(f"{name}=={version}\n" for name, version in sorted(found.items()) if name not in _OWN)


TORCH = ("torch", "torchvision", "torchaudio")
_INDEX = "https://download.pytorch.org/whl"


def torch_builds(indexes: Mapping[str, str] = MappingProxyType({})) -> dict[str, dict[str, str]]:
    """Return kind of machine → the exact builds of torch it needs, and the index that has them.

    A machine with the same kind of GPUs as the server's torch was built for gets the server's own build: PyPI has only
    one build of each version, and never one for AMD. Others get PyPI's build of the same version, or that of the site's own
    index for their kind: pip prefers `2.9.1+rocm6.4` of such an index to PyPI's 2.9.1.
    """
    builds = {
        kind: {"name": hashlib.sha256(url.encode()).hexdigest()[:8], "pins": "", "index": url}
        for kind, url in indexes.items()
    }
    local = (installed("torch") or "").partition("+")[2]
    kind = build_kind(local)
    if kind in (None, "cpu"):
        return builds
    found = {name: version for name in TORCH if (version := installed(name)) and "+" in version}
    pins = "".join(f"{name}=={version}\n" for name, version in found.items())
    index = indexes.get(str(kind), f"{_INDEX}/{local}")
    return builds | {str(kind): {"name": local, "pins": pins, "index": index}}


def torch_indexes(setting: str) -> dict[str, str]:
    """Return kind of machine → URL of an index, from the setting `torch_index`; raise InvalidSpec if it is none."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in setting.split(","))):
        kind, _, url = (word.strip() for word in part.partition("="))
        if kind not in KINDS or not re.match(r"(https?|file)://[!-~]+$", url):
            raise InvalidSpec(
                f"torch_index: {part!r} is not an index of a kind of slots.",
                hint=f'torch_index = "cuda=https://mirror/whl/cu128"; kinds: {", ".join(KINDS)}',
            )
        found[kind] = url
    return found


def torch_given(settings: ServerSettings, kind: str) -> str | None:
    """Return the version of torch that machines of a kind get from this server; None if the site provides its own."""
    site = settings.wheelhouse or kind in torch_indexes(settings.torch_index)
    return None if site else installed("torch")


def build_kind(local: str) -> str | None:
    """Return the kind of devices a build of torch is for, by the part of its version after "+"; None if it does not tell."""
    for start, kind in (("rocm", "rocm"), ("cu", "cuda"), ("xpu", "xpu"), ("cpu", "cpu")):
        if local.startswith(start):
            return kind
    return None


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _extras() -> list[str]:
    wanted: dict[str, list[str]] = {}
    for line in wheels.own_distribution().requires or ():
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name and extra:
            wanted.setdefault(extra[1], []).append(name[0])
    return [extra for extra in EXTRAS if all(installed(name) for name in wanted.get(extra, ["?"]))]
