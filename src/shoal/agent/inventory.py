"""What a job runs on, as a record of its `system` stream: the interpreter's version and the packages it finds.

Read from the names of installed packages' folders, which costs a millisecond; nothing is imported or started.
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
    """`{"t", "env": {"python", "packages"}}` of the interpreter that runs the job, layered on the runtime's or the same."""
    folders = [Path(p) for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    if python != runtime:
        folders = [*sorted(Path(python).parents[1].glob("lib/python*/site-packages")), *folders]
    version = ".".join(map(str, sys.version_info[:3]))
    env = {"python": version, "packages": packages(folders)}
    return json.dumps({"t": round(time.time(), 3), "env": env}, separators=(",", ":")).encode()


def packages(folders: list[Path]) -> dict[str, str]:
    """Name → version, sorted; of one found twice, the first, as the interpreter does."""
    found: dict[str, str] = {}
    for folder in folders:
        with suppress(OSError):
            for entry in folder.iterdir():
                if named := _NAMED.fullmatch(entry.name):
                    found.setdefault(named["name"], named["version"])
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))
