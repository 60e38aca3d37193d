"""The runtime's torch stays: a requirements.txt that asks for another one is refused before anything is downloaded.

Another torch would not match the machine's driver and devices, and is hundreds of megabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from shoal.agent.inventory import packages

FAMILY = ("torch", "torchvision", "torchaudio")
"""Built against each other: one of another version drags the rest along."""
_WHEEL = re.compile(r"(?:^|[/\\])(?P<name>torch|torchvision|torchaudio)-(?P<version>\d[^-/]*)-[^/]*\.whl\b")
_MOST_FILES = 20


def installed(folders: list[str]) -> dict[str, str]:
    """Name → version of what the runtime has of torch."""
    found = {name.lower(): version for name, version in packages([Path(f) for f in folders]).items()}
    return {name: found[name] for name in FAMILY if name in found}


def constraints(runtime: dict[str, str]) -> list[str]:
    """Lines for pip. They hold for dependencies of dependencies too."""
    return [f"{name}=={version}" for name, version in runtime.items()]


def conflict(requirements: Path, runtime: dict[str, str]) -> str | None:
    """The first requirement that the runtime's torch does not satisfy, in words; None if there is none."""
    for line in _lines(requirements, set()):
        if (asked := _asked(line, runtime)) is not None:
            return f"{requirements.name} asks for {asked}; {keeps(runtime)}"
    return None


def keeps(runtime: dict[str, str]) -> str:
    """Versions that are kept, and what to do about it."""
    has = ", ".join(f"{name} {version}" for name, version in runtime.items())
    return (
        f"the runtime has {has}. Change the requirement, or let this job replace it: "
        "shoal training run NAME --allow-torch-change -- SCRIPT"
    )


def replaced(venv: Path) -> list[str]:
    """Return the torch packages an environment has of its own, by name and version."""
    found = packages(sorted(venv.glob("lib/python*/site-packages")))
    return [f"{name} {version}" for name, version in found.items() if name.lower() in FAMILY]


def _asked(line: str, runtime: dict[str, str]) -> str | None:
    """Return the torch a requirement asks for, if it is another one."""
    if wheel := _WHEEL.search(unquote(line)):
        same = runtime.get(wheel["name"]) in (None, wheel["version"])
        return None if same else f"{wheel['name']}-{wheel['version']}"
    need = _parse(line)
    if need is None:
        return None
    name = need.name.lower().replace("_", "-")
    if name not in runtime or (need.marker and not need.marker.evaluate()):
        return None
    if need.url:
        return f"{name} @ {need.url}"
    return None if need.specifier.contains(runtime[name], prereleases=True) else f"{name}{need.specifier}"


def _parse(line: str) -> Any:
    """A requirement; None for options, paths and whatever else pip alone understands."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:  # pip brings a copy of its own
        from pip._vendor.packaging.requirements import InvalidRequirement, Requirement  # type: ignore[assignment]
    try:
        return Requirement(line.split(" --hash")[0])
    except InvalidRequirement:
        return None


def _lines(requirements: Path, seen: set[Path]) -> Iterator[str]:
    """Yield the lines of a file and of those it names by -r."""
    path = requirements.resolve()
    if path in seen or len(seen) >= _MOST_FILES or not path.is_file():
        return
    seen.add(path)
    text = path.read_text("utf-8-sig", "replace").replace("\\\n", " ")
    for raw in text.splitlines():
        line = re.split(r"(?:^|\s)#", raw, maxsplit=1)[0].strip()
        if also := re.fullmatch(r"(?:-r|--requirement)[ =]?\s*(\S+)", line):
            yield from _lines(requirements.parent / also[1], seen)
        elif line:
            yield line
