"""Place of a directory on its disk: a renamed one keeps its place, a copy has another. Light, because every agent imports it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def place(directory: Path) -> str:
    """Return what tells a directory from every copy of it on this machine."""
    status = directory.stat()
    return f"{status.st_dev}:{status.st_ino}"


def mark(directory: Path) -> dict[str, str]:
    """Return what to write into a file of this directory, so that it can be told from one that came with a copy."""
    return {"place": place(directory), "path": str(directory.absolute())}


def is_own(written: Mapping[str, Any], directory: Path) -> bool:
    """Return whether something with that mark was written here: renamed or restored in place since, but not copied.

    What has no mark (0.1) counts as written here.
    """
    if "place" not in written:
        return True
    return written["place"] == place(directory) or written.get("path") == str(directory.absolute())


def is_copied_node(directory: Path) -> bool:
    """Return whether a node's directory is a copy of the one its agent was started in: its processes are not ours to end."""
    signature, launch = _read(directory / "agent.json"), _read(directory / "launch.json")
    if "place" in signature:
        return not is_own(signature, directory)
    with suppress(OSError):  # an agent of 0.1 has no mark
        return bool(launch.get("work_dir")) and not Path(launch["work_dir"]).samefile(directory)
    return False


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else {}
    return {}
