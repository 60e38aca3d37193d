"""Packages of the runtime that an environment depends on, so that installing others beside the server leaves it valid.

Which they are is known once an environment has been built: the packages its requirements name, and those they need in turn.
Their names are kept in `<base>.uses.json`, where `base` is a key of everything but the runtime's packages. The key of an
environment then covers the versions of these packages only. The first environment of a base, which was built before the names
were known, is found by a second folder that refers to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r";.*\bextra\s*==")
_DIST = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(?:-py\d[\d.]*)?\.(?:dist|egg)-info")
_MOST_BYTES = 1 << 20


def installed(folders: Iterable[Path | str]) -> dict[str, tuple[str, Path]]:
    """Return normalized name → version and metadata folder of the packages in these folders; the first folder wins."""
    found: dict[str, tuple[str, Path]] = {}
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if named := _DIST.fullmatch(entry.name):
                    found.setdefault(normal(named["name"]), (named["version"], Path(entry.path)))
                elif entry.name.endswith(".egg-link"):
                    found.setdefault(normal(entry.name.removesuffix(".egg-link")), ("link", Path(entry.path)))
    return found


def key(base: str, versions: Mapping[str, tuple[str, Path]], names: Collection[str] | None) -> str:
    """Return the key of an environment for the runtime as it is now. Without names, all its packages count."""
    used = {name: versions[name][0] if name in versions else None for name in names} if names is not None else None
    told = used if used is not None else {name: version for name, (version, _) in versions.items()}
    return hashlib.blake2b(json.dumps([base, sorted(told.items())]).encode(), digest_size=16).hexdigest()


def load(envs: Path, base: str) -> list[str] | None:
    """Return the names that count for environments of this base, or None while they are not known."""
    with suppress(OSError, ValueError):
        names = json.loads((envs / f"{base}.uses.json").read_text())
        return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
    return None


def save(envs: Path, base: str, names: Collection[str]) -> None:
    aside = envs / f"{base}.uses.tmp"
    aside.write_text(json.dumps(sorted(names)))
    aside.rename(envs / f"{base}.uses.json")


def closure(lines: Iterable[str], *layers: Mapping[str, tuple[str, Path]]) -> set[str] | None:
    """Return the names that requirement lines need, directly and in turn; None if a line is more than a requirement.

    Metadata is read, never run: packages of an environment are made by code of the job.
    """
    todo, seen = [], set[str]()
    for line in lines:
        text = line.split(" #")[0].strip()
        if not text or text.startswith(("-", ".", "/", "git+", "http:", "https:", "file:")):
            if text:
                return None
            continue
        todo.append(text)
    while todo:
        found = _NAME.match(todo.pop())
        name = normal(found[0]) if found else ""
        if not name or name in seen:
            continue
        seen.add(name)
        for layer in layers:
            if name in layer:
                todo += _requires(layer[name][1])
                break
    return seen


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requires(metadata: Path) -> list[str]:
    """Return the requirements of a package, without those of its extras."""
    path = metadata / "METADATA"
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            head = file.read(_MOST_BYTES).decode("utf-8", "replace").split("\n\n", 1)[0]
        found = (line.partition(":")[2].strip() for line in head.splitlines() if line.startswith("Requires-Dist:"))
        return [line for line in found if not _EXTRA.search(line)]
    return []
