"""A host's cable that is long, lossy and narrow: two network cards of the kernel (TAP) with this program between them.

Works where `tc netem` is not in the kernel. Run as a file by a bare interpreter: `line.py CARD CARD DELAY_S LOSS BYTES_PER_S`;
says "up" once both cards are there, and ends when one of them is gone.
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
"""What would wait longer for its turn is dropped, as routers do."""


def missing() -> str | None:
    """Why there are no such lines here; None if there are."""
    return None if os.access(_DEVICE, os.R_OK | os.W_OK) else f"lines with delay and loss need {_DEVICE}"


@dataclass(frozen=True, slots=True)
class Line:
    """Of each direction: a round trip between two hosts on such lines takes four delays."""

    delay_s: float = 0.0
    loss: float = 0.0
    """Share of packets that do not arrive."""
    bytes_per_s: float = 1e9

    def lay(self, *cards: str) -> subprocess.Popen[bytes]:
        """Between two new network cards by these names; whoever kills it takes them away. It ends when we do."""
        argv = [sys.executable, "-I", __file__, *cards, str(self.delay_s), str(self.loss), str(self.bytes_per_s)]
        carrier = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *argv], stdout=subprocess.PIPE)
        assert carrier.stdout is not None
        with carrier.stdout as said:
            if said.readline() != b"up\n":
                raise RuntimeError(f"no line could be laid: {carrier.wait()}")
        return carrier


class Way:
    """One direction: frames in the order they came, and when each is due at the other end."""

    def __init__(self, line: Line, sink: int, dice: random.Random):
        self._line, self._sink, self._dice = line, sink, dice
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0

    def take(self, frame: bytes, now: float) -> None:
        begins = max(now, self._free_at)
        if begins - now > _BACKLOG_S or self._dice.random() < self._line.loss:
            return
        self._free_at = begins + len(frame) / self._line.bytes_per_s
        self._under_way.append((self._free_at + self._line.delay_s, frame))

    def deliver(self, now: float) -> float | None:
        """What is due; when the next one is."""
        while self._under_way and self._under_way[0][0] <= now:
            with suppress(OSError):  # the card is down: the cable was pulled
                os.write(self._sink, self._under_way.popleft()[1])
        return self._under_way[0][0] if self._under_way else None


def main() -> None:
    ends = [open_card(name) for name in sys.argv[1:3]]
    line, dice = Line(*map(float, sys.argv[3:6])), random.Random(1)
    ways = {source: Way(line, sink, dice) for source, sink in (ends, reversed(ends))}
    print("up", flush=True)
    with selectors.DefaultSelector() as selector, suppress(OSError):  # until a card is gone
        for end in ends:
            selector.register(end, selectors.EVENT_READ)
        while True:
            due = [at for way in ways.values() if (at := way.deliver(time.monotonic())) is not None]
            for key, _ in selector.select(max(0.0, min(due) - time.monotonic()) if due else None):
                read_all(key.fd, ways[key.fd])


def read_all(source: int, way: Way) -> None:
    with suppress(BlockingIOError):
        while True:
            way.take(os.read(source, _FRAME), time.monotonic())


def open_card(name: str) -> int:
    card = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(card, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
    return card


if __name__ == "__main__":
    main()
