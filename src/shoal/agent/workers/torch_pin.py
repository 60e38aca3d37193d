"""Keeps the runtime's torch: a requirements.txt that needs another version is refused before anything is downloaded.

Another torch may not match the machine's driver and devices, and is hundreds of megabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from shoal.agent.node.inventory import packages

FAMILY = ("torch", "torchvision", "torchaudio")
"""Packages that are built against each other: changing the version of one changes the others."""
_WHEEL = re.compile(r"(?:^|[/\\])(?P<name>torch|torchvision|torchaudio)-(?P<version>\d[^-/]*)-[^/]*\.whl\b")
_MOST_FILES = 20


def installed(folders: list[str]) -> dict[str, str]:
    """Return name → version of the torch packages installed in the runtime."""
    found = {name.lower(): version for name, version in packages([Path(f) for f in folders]).items()}
    return {name: found[name] for name in FAMILY if name in found}


def constraints(runtime: dict[str, str]) -> list[str]:
    """Return constraint lines for pip, which also apply to indirect dependencies."""
    return [f"{name}=={version}" for name, version in runtime.items()]


def conflict(requirements: Path, runtime: dict[str, str]) -> str | None:
    """Return an error text for the first requirement that the runtime's torch does not satisfy, or None."""
    for line in _lines(requirements, set()):
        if (other := _conflicting(line, runtime)) is not None:
            return f"{requirements.name} asks for {other}; {keeps(runtime)}"
    return None


def keeps(runtime: dict[str, str]) -> str:
    """Return a text with the versions that are kept and the command that allows a change."""
    has = ", ".join(f"{name} {version}" for name, version in runtime.items())
    return (
        f"the runtime has {has}. Change the requirement, or let this job replace it: "
        "shoal training run NAME --allow-torch-change -- SCRIPT"
    )


def replaced(venv: Path) -> list[str]:
    """Return the torch packages that are installed in the venv itself, as `name version`."""
    found = packages(sorted(venv.glob("lib/python*/site-packages")))
    return [f"{name} {version}" for name, version in found.items() if name.lower() in FAMILY]


def _conflicting(line: str, runtime: dict[str, str]) -> str | None:
    """Return the torch version a requirement asks for if it differs from the runtime's, else None."""
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
    """Parse a requirement; return None for options, paths and other lines that only pip understands."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:  # pip brings a copy of its own
        from pip._vendor.packaging.requirements import InvalidRequirement, Requirement  # type: ignore[assignment]
    try:
        return Requirement(line.split(" --hash")[0])
    except InvalidRequirement:
        return None


def _lines(requirements: Path, seen: set[Path]) -> Iterator[str]:
    """Yield the lines of a requirements file and of the files it includes with -r."""
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
