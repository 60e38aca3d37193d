"""Python version and installed packages of a job, as one record of its `system` stream.

The versions are read from the names of the packages' metadata folders, which takes a millisecond; nothing is imported or
started.
"""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

_NAMED = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(?:-py\d[\d.]*)?\.(?:dist|egg)-info")


def record(python: str, runtime: str) -> bytes:
    """Return the record `{"t", "env": {"python", "packages"}}` of the job's interpreter.

    `python` is the job's interpreter: either `runtime` itself or a virtual environment layered on it.
    """
    folders = [Path(p) for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    if python != runtime:
        folders = [*sorted(Path(python).parents[1].glob("lib/python*/site-packages")), *folders]
    version = ".".join(map(str, sys.version_info[:3]))
    env = {"python": version, "packages": packages(folders)}
    return json.dumps({"t": round(time.time(), 3), "env": env}, separators=(",", ":")).encode()


def packages(folders: list[Path]) -> dict[str, str]:
    """Return name → version of the packages in these folders, sorted. The first folder wins, as in the interpreter."""
    found: dict[str, str] = {}
    for folder in folders:
        with suppress(OSError):
            for entry in folder.iterdir():
                if named := _NAMED.fullmatch(entry.name):
                    found.setdefault(named["name"], named["version"])
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))
