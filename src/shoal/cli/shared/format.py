"""Formatting of numbers, times and untrusted text for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from shoal.core.durations import ago, duration

__all__ = ["STATUS_STYLES", "ago", "bar", "clean", "clean_log", "duration", "plural", "size", "timestamp"]

STATUS_STYLES = {
    "queued": "yellow",
    "starting": "cyan",
    "running": "bold blue",
    "succeeded": "green",
    "failed": "bold red",
    "stopped": "magenta",
    "preparing": "cyan",
    "pending": "yellow",
    "exited": "default",
    "lost": "bold red",
    "up": "green",
    "down": "bold red",
    "finished": "green",
    "done": "green",
    "reused": "green",
    "pruned": "magenta",
    "skipped": "yellow",
}

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Colours (CSI … m) are kept; sequences that move the cursor, set titles or clear the screen are removed.
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;:]*(?P<colour>m)|\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_]|.)?")


def timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def size(num_bytes: int) -> str:
    """Format a number of bytes: `512 B`, `1.5 KiB`, `340 MiB`."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1000 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError(num_bytes)


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def bar(fraction: float, width: int = 24) -> str:
    filled = round(max(0.0, min(1.0, fraction)) * width)
    return "━" * filled + "╌" * (width - filled)


def clean(text: str) -> str:
    """Return untrusted text on one line, without terminal control sequences."""
    return _CONTROL.sub("", _ESCAPE.sub("", text)).replace("\n", " ").replace("\t", " ")


def clean_log(text: str) -> str:
    """Return a log line for a terminal: colours are kept, all other control sequences removed."""
    if "\x1b" not in text:
        return _CONTROL.sub("", text)
    kept = _ESCAPE.sub(lambda m: m.group().replace("\x1b", "\ue000") if m["colour"] else "", text)
    return _CONTROL.sub("", kept).replace("\ue000", "\x1b") + "\x1b[0m"
