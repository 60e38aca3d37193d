"""Network line with delay, loss and limited speed: two TAP network interfaces with this program between them.

It works where the kernel has no `tc netem`. A bare interpreter runs this file: `line.py CARD CARD DELAY_S LOSS BYTES_PER_S`.
It prints "up" once both interfaces exist, and ends when one of them is removed.
"""

from __future__ import annotations

import fcntl
import os
import random
import selectors
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DEVICE = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_FRAME = 2048
_BACKLOG_S = 0.5
"""Seconds after which a waiting frame is dropped, as routers do."""


def missing() -> str | None:
    """Return why lines are not available on this machine; None if they are."""
    return None if os.access(_DEVICE, os.R_OK | os.W_OK) else f"lines with delay and loss need {_DEVICE}"


@dataclass(frozen=True, slots=True)
class Line:
    """Properties of each direction of a line. A round trip between two hosts on such lines takes four delays."""

    delay_s: float = 0.0
    loss: float = 0.0
    """Fraction of packets that do not arrive."""
    bytes_per_s: float = 1e9

    def lay(self, *cards: str) -> subprocess.Popen[bytes]:
        """Start a line between two new network interfaces of these names and return its process.

        Killing the process removes the interfaces. It ends with this process.
        """
        argv = [sys.executable, "-I", __file__, *cards, str(self.delay_s), str(self.loss), str(self.bytes_per_s)]
        carrier = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *argv], stdout=subprocess.PIPE)
        assert carrier.stdout is not None
        with carrier.stdout as said:
            if said.readline() != b"up\n":
                raise RuntimeError(f"the line could not be started: exit code {carrier.wait()}")
        return carrier


class Direction:
    """One direction of a line: frames in order, and when each is due at the other end."""

    def __init__(self, line: Line, sink: int, dice: random.Random):
        self._line, self._sink, self._dice = line, sink, dice
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0

    def pop(self, frame: bytes, now: float) -> None:
        begins = max(now, self._free_at)
        if begins - now > _BACKLOG_S or self._dice.random() < self._line.loss:
            return
        self._free_at = begins + len(frame) / self._line.bytes_per_s
        self._under_way.append((self._free_at + self._line.delay_s, frame))

    def deliver(self, now: float) -> float | None:
        """Write the frames that are due; return the time at which the next one is due, or None."""
        while self._under_way and self._under_way[0][0] <= now:
            with suppress(OSError):  # the interface is down: the cable was disconnected
                os.write(self._sink, self._under_way.popleft()[1])
        return self._under_way[0][0] if self._under_way else None


def main() -> None:
    ends = [open_card(name) for name in sys.argv[1:3]]
    line, dice = Line(*map(float, sys.argv[3:6])), random.Random(1)
    ways = {source: Direction(line, sink, dice) for source, sink in (ends, reversed(ends))}
    print("up", flush=True)
    with selectors.DefaultSelector() as selector, suppress(OSError):  # until an interface is removed
        for end in ends:
            selector.register(end, selectors.EVENT_READ)
        while True:
            due = [at for way in ways.values() if (at := way.deliver(time.monotonic())) is not None]
            for key, _ in selector.select(max(0.0, min(due) - time.monotonic()) if due else None):
                read_all(key.fd, ways[key.fd])


def read_all(source: int, way: Direction) -> None:
    with suppress(BlockingIOError):
        while True:
            way.pop(os.read(source, _FRAME), time.monotonic())


def open_card(name: str) -> int:
    card = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(card, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
    return card


if __name__ == "__main__":
    main()
