"""How numbers, times and untrusted text are shown to people."""

from __future__ import annotations

import re
from datetime import UTC, datetime

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
}

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Colours (CSI … m) may pass; whatever else moves the cursor, sets titles or clears the screen may not.
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;:]*(?P<colour>m)|\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_]|.)?")


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 0:
        return "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for unit, size, below, part in (("min", 60, "s", 1), ("h", 3600, "min", 60), ("d", 86_400, "h", 3600)):
        if whole < size * {"min": 60, "h": 24}.get(unit, 10**9):
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    raise AssertionError(seconds)


def ago(moment: datetime, now: datetime | None = None) -> str:
    """`just now`, `40 s ago`, `3 min ago`, `2 h ago`, `5 days ago`, then the date."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < -5:
        return f"in {_coarse(-seconds)}"
    if seconds < 5:
        return "just now"
    if seconds >= 30 * 86_400:
        return f"{moment:%Y-%m-%d}"
    return f"{_coarse(seconds)} ago"


def timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def size(num_bytes: int) -> str:
    """`512 B`, `1.5 KiB`, `340 MiB`."""
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
    """Text of unknown origin on one line, unable to steer the terminal."""
    return _CONTROL.sub("", _ESCAPE.sub("", text)).replace("\n", " ").replace("\t", " ")


def clean_log(text: str) -> str:
    """A log line for a terminal: its colours stay, everything that could steer the terminal goes."""
    if "\x1b" not in text:
        return _CONTROL.sub("", text)
    kept = _ESCAPE.sub(lambda m: m.group().replace("\x1b", "\ue000") if m["colour"] else "", text)
    return _CONTROL.sub("", kept).replace("\ue000", "\x1b") + "\x1b[0m"


def _coarse(seconds: float) -> str:
    for unit, length in (("day", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return plural(count, unit) if unit == "day" else f"{count} {unit}"
    return f"{int(seconds)} s"
