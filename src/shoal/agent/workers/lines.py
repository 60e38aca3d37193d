"""Splits output bytes into lines: newlines, carriage-return progress bars, over-long lines, rate limit, secrets. All pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

MAX_LINE = 16 << 10
BAR_EVERY_S = 1.0
"""Seconds between two lines of the same progress bar; states in between are dropped."""
MIN_SECRET = 6
_MARKS = re.compile(rb"(\r\n|\n|\r|\x1b\[A)")
_UP = b"\x1b[A"


class Splitter:
    """Splits the bytes of one stream into whole lines.

    Text that a bare carriage return overwrites is a progress bar: only its latest state is kept, and returned once per
    BAR_EVERY_S. A cursor-up sequence (tqdm's nested bars) has the same meaning; the newline that follows it does not end a
    line.
    """

    def __init__(self, redact: Callable[[bytes], bytes] = bytes, keep: int = 0):
        self._rest = b""
        self._redact, self._keep = redact, keep
        """Bytes held back of an over-long line: the length of the longest secret, so that no secret is split and so missed."""
        self._bar: bytes | None = None
        self._bar_shown_at = 0.0
        self._in_bar = False
        self._raised = False

    @property
    def waiting(self) -> bool:
        """True if `due` will return something later."""
        return self._bar is not None or (self._in_bar and bool(self._rest))

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Add bytes; return the lines that are complete."""
        plain = b"\r" not in data and _UP not in data and not self._in_bar and not self._rest.endswith(b"\r")
        if plain:
            *lines, self._rest = (self._rest + data).split(b"\n")
        else:
            lines = self._feed_marked(data, now)
        while len(self._rest) > MAX_LINE + self._keep:
            self._rest = self._redact(self._rest)
            cut = _boundary(self._rest)
            lines.append(self._rest[:cut])
            self._rest = self._rest[cut:]
        return lines

    def skip(self, data: bytes) -> int:
        """Drop bytes instead of splitting them; return the number of lines in them. Much cheaper than `feed`."""
        at = data.rfind(b"\n")
        if at < 0:
            self._rest = (self._rest + data)[-MAX_LINE:]
            return 0
        self._rest, self._bar, self._in_bar = data[at + 1 :][-MAX_LINE:], None, False
        return data.count(b"\n")

    def due(self, now: float) -> list[bytes]:
        """Return the state of a progress bar that has not been returned for BAR_EVERY_S."""
        if not self.waiting or now - self._bar_shown_at < BAR_EVERY_S:
            return []
        state = self._rest if self._rest and self._in_bar else self._bar
        self._bar = None
        if self._in_bar:
            self._rest = b""
        self._bar_shown_at = now
        return [state] if state else []

    def close(self) -> list[bytes]:
        """End the stream; return the rest as a line even without a newline."""
        state = self._rest.removesuffix(b"\r") or self._bar
        self._rest, self._bar, self._in_bar = b"", None, False
        return [state] if state else []

    def _feed_marked(self, data: bytes, now: float) -> list[bytes]:
        data = self._rest + data
        # If a read ends between \r and \n, the \r waits for the next read: else the line would count as a progress bar.
        self._rest, tail = (data[:-1], b"\r") if data.endswith(b"\r") else (data, b"")
        pieces = _MARKS.split(self._rest)
        lines: list[bytes] = []
        for text, mark in zip(pieces[0:-1:2], pieces[1::2], strict=True):
            self._end_piece(text, mark, lines)
        self._rest = pieces[-1] + tail
        if self._bar is not None and now - self._bar_shown_at >= BAR_EVERY_S:
            lines.append(self._bar)
            self._bar, self._bar_shown_at = None, now
        return lines

    def _end_piece(self, text: bytes, mark: bytes, lines: list[bytes]) -> None:
        if mark in (b"\r", _UP):
            self._bar = text or self._bar
            self._in_bar, self._raised = True, mark == _UP
            return
        if self._raised and not text:
            self._raised = False
            return
        if text or self._bar is not None or not self._in_bar:
            lines.append(text or self._bar or b"")
        self._bar, self._in_bar, self._raised = None, False, False


class TokenBucket:
    """Rate limit in bytes per second, with a burst."""

    def __init__(self, rate: float, burst: float, now: float):
        self._rate, self._burst, self._level, self._at = rate, burst, burst, now

    def refill(self, now: float) -> float:
        """Return the number of bytes that may pass now."""
        self._level = min(self._burst, self._level + max(0.0, now - self._at) * self._rate)
        self._at = now
        return self._level

    def consume(self, size: int) -> bool:
        if self._level < size:
            return False
        self._level -= size
        return True


class Redactor:
    """Replaces the values of secrets with ***. Values under MIN_SECRET characters stay: hiding every '1' would hide the log."""

    def __init__(self, secrets: Iterable[str]):
        parts = {part for value in secrets for part in (value, *value.splitlines()) if len(part.strip()) >= MIN_SECRET}
        # The longest first, because one secret may be the beginning of another.
        ordered = sorted((p.encode() for p in parts), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, ordered))) if ordered else None
        self.longest = len(ordered[0]) if ordered else 0

    def __call__(self, data: bytes) -> bytes:
        return self._pattern.sub(b"***", data) if self._pattern else data


def pieces(line: bytes) -> list[bytes]:
    """Split a line into parts of at most MAX_LINE bytes, never inside a character."""
    parts = []
    while len(line) > MAX_LINE:
        cut = _boundary(line)
        parts.append(line[:cut])
        line = line[cut:]
    return [*parts, line] if line or not parts else parts


def _boundary(data: bytes) -> int:
    """Return the largest index up to MAX_LINE that is not inside a UTF-8 character. `data` is longer than MAX_LINE."""
    for cut in range(MAX_LINE, MAX_LINE - 4, -1):
        if data[cut] & 0xC0 != 0x80:
            return cut
    return MAX_LINE
