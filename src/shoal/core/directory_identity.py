"""Identity of a directory on its disk: a renamed directory keeps it, a copy has another.

Light, because every agent imports it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def place(directory: Path) -> str:
    """Return the device and inode of a directory, which no copy of it on this machine shares."""
    status = directory.stat()
    return f"{status.st_dev}:{status.st_ino}"


def mark(directory: Path) -> dict[str, str]:
    """Return fields to write into a file of this directory, so that a copied file can be recognised later."""
    return {"place": place(directory), "path": str(directory.absolute())}


def is_own(written: Mapping[str, Any], directory: Path) -> bool:
    """Return whether a file with this mark was written here: in a directory renamed or restored in place since, but not copied.

    A file without a mark (written by 0.1) counts as written here.
    """
    if "place" not in written:
        return True
    return written["place"] == place(directory) or written.get("path") == str(directory.absolute())


def is_copied_node(directory: Path) -> bool:
    """Return whether a node's directory is a copy of the one its agent was started in.

    The processes that the files of a copy name belong to the original and must not be ended.
    """
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
