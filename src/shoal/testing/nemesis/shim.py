"""A sick machine for the server and the agents of a test: their disk fails, fills or is slow, their clock jumps, they die at a write.

The library `sick.c` is preloaded into both. It reads its orders from a file that is mapped into memory, so a fault begins and
ends at once, without a restart.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Literal

SOURCE = Path(__file__).with_name("sick.c")
_FORMAT = struct.Struct("=6iq")
_FIELDS = ("write_errno", "sync_errno", "open_errno", "sync_delay_ms", "kill_after", "reserved", "clock_ns")
Whom = Literal["server", "agents"]
_PLACES: dict[Whom, int] = {"server": 0, "agents": 1}


def missing() -> str | None:
    """Return why processes cannot be made sick here, as a reason to skip tests; None if they can."""
    return None if shutil.which("gcc") else "a sick disk needs gcc"


class Shim:
    """The preloaded library and its orders, for all processes of one data directory."""

    def __init__(self, folder: Path, home: Path):
        """Compile the library in `folder`. Only files below `home` are concerned."""
        self._library, self._file, self._home = folder / "sick.so", folder / "sick", home
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE), "-ldl"], check=True, timeout=120
        )
        self._file.write_bytes(bytes(4096))
        fd = os.open(self._file, os.O_RDWR)
        try:
            self._map = mmap.mmap(fd, 4096)
        finally:
            os.close(fd)

    @property
    def env(self) -> dict[str, str]:
        """Environment of the server; its agents inherit it."""
        return {"LD_PRELOAD": str(self._library), "SICK_FILE": str(self._file), "SICK_FOLDER": str(self._home)}

    def set_fields(self, whom: Whom, **fields: int) -> None:
        """Set fields of sick.c's struct; the others become 0. Without fields the processes are healthy."""
        values = [fields.pop(name, 0) for name in _FIELDS]
        if fields:
            raise TypeError(f"sick.c has no field {next(iter(fields))}")
        at = _PLACES[whom] * _FORMAT.size
        self._map[at : at + _FORMAT.size] = _FORMAT.pack(*values)

    def heal(self) -> None:
        for whom in _PLACES:
            self.set_fields(whom)

    def close(self) -> None:
        self._map.close()
