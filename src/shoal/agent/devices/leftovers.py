"""Memory of a node's accelerators that other processes still use before its workers start: left behind by an earlier job, or that of
another program. The node waits a while for it to be freed; then the node fails, and the server drains the device."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.core.faults import IN_USE

if TYPE_CHECKING:
    from shoal.agent.devices.device import Inventory

logger = logging.getLogger(__name__)
LEAST_BYTES = 2 << 30
"""Memory in use below this is that of the driver, a desktop or a monitor."""
EVERY_S = 2.0


class Used(NamedTuple):
    """An accelerator whose memory is in use."""

    local: int
    """Its place among those of the node."""
    text: str


class Leftovers:
    """Reads the node's accelerators in a thread of its own, while the node is prepared. `_found` is written by that thread
    only, and read once it has ended."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        wait_s: float,
        say: Callable[[str], None],
        take: Callable[[], Inventory] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ):
        """Set up without reading.

        Args:
            names: UUIDs or numbers of the node's accelerators; empty if it has none.
            wait_s: Seconds to wait for them to be free; 0 only says that they are not.
            say: Writes a line to the job's log.
            take: Reads the accelerators; by default those of this machine.
            pause: Waits between two readings.
        """
        self._names, self._wait_s, self._say, self._pause = list(names), wait_s, say, pause
        self._take = take or _scan
        self._found: Used | None = None
        self._thread = threading.Thread(target=self._read_first, name="leftovers", daemon=True)

    def start(self) -> None:
        if self._names:
            self._thread.start()

    def wait(self, is_over: Callable[[], bool] = lambda: False) -> Used | None:
        """Wait until the accelerators are free; return one that is still in use in the end, or None.

        Returns at once if nobody is to wait, or when `is_over` returns true.
        """
        if not self._names or not self._wait_s:
            return None
        self._thread.join()
        left_s = self._wait_s
        while self._found is not None and left_s > 0 and not is_over():
            self._pause(EVERY_S)
            left_s -= EVERY_S
            self._found = self._read()
        return None if is_over() else self._found

    def _read_first(self) -> None:
        self._found = self._read()
        if self._found is not None:
            waits = f"; waiting for up to {self._wait_s:.0f} s" if self._wait_s else ""
            self._say(f"[shoal] {self._found.text}{waits}")

    def _read(self) -> Used | None:
        try:
            return in_use(self._take(), self._names)
        except Exception as error:  # a job is not kept from starting because nothing can be read
            logger.warning("the memory of the accelerators cannot be read: %s", error)
            return None


def in_use(found: Inventory, names: Sequence[str]) -> Used | None:
    """Return the first of these accelerators of which others use memory; None if all are free, or tell nothing."""
    for local, name in enumerate(names):
        gauge = next((g for g in found.gauges.values() if name in (g["uuid"], str(g["i"])) and "mem" in g), None)
        if gauge is None or gauge["mem"] < LEAST_BYTES:
            continue
        number = f"GPU {gauge['i']}" + (f" slice {gauge['part']}" if "part" in gauge else "")
        pids = found.users.get(gauge["uuid"], ())
        who = f" by {', '.join(map(_process, pids))}" if pids else ""
        return Used(local, f"{number}: {gauge['mem'] / 2**30:.1f} GiB {IN_USE}{who}")
    return None


def _process(pid: int) -> str:
    with suppress(OSError):
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    return f"process {pid}"


def _scan() -> Inventory:
    from shoal.agent.devices import inventory

    return inventory.scan()
