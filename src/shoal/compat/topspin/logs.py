"""TopSpin's Logger and Timer, and their time format."""

from __future__ import annotations

import datetime
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TextIO
from zoneinfo import ZoneInfo

_MARKS = ("DEBUG:", "INFO:", "WARN:", "ERR:")


def get_log_time(utc_time: bool = True, country_city: str | None = None) -> str:
    """Return the current time in UTC, in a zone such as "Asia/Chongqing", or (utc_time=False) in local time."""
    return _stamp(_now(country_city) if utc_time else datetime.datetime.now().astimezone(), utc_time, country_city)


def get_future_time(
    days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, country_city: str | None = None
) -> str:
    ahead = datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return _stamp(_now(country_city) + ahead, True, country_city)


def to_readable_time(seconds: float) -> str:
    """Return a duration such as 1 d 2 h 3 m 4.500 s."""
    if seconds < 0:
        return f"negative time: {seconds} seconds."
    if seconds >= 365 * 24 * 3600:
        return "over 365 days"
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{int(count)} {unit}")
    if seconds or not parts:
        parts.append(f"{seconds:.3f} s")
    return " ".join(parts)


class Logger:
    """Log with the levels debug=0, info=1, warning=2, error=3. All methods are static: there is one log per process."""

    level: ClassVar[int] = 1
    outstream: ClassVar[TextIO | None] = None
    """Output stream; None: the current sys.stdout."""
    country_city: ClassVar[str] = ""
    _copy: ClassVar[TextIO | None] = None

    @staticmethod
    def reset_outstream(out_file: str, append: bool = False) -> None:
        """Write to a file instead of the terminal from now on."""
        Logger.outstream = _opened(out_file, append)

    @staticmethod
    def copy_to(out_file: str, append: bool = False) -> None:
        """Write also to a file from now on."""
        Logger._copy = _opened(out_file, append)

    @staticmethod
    def close() -> None:
        """Close the files and write to the terminal again."""
        for stream in (Logger.outstream, Logger._copy):
            if stream not in (None, sys.stdout, sys.stderr):
                stream.close()
        Logger.outstream = Logger._copy = None

    @staticmethod
    def set_level(level: int) -> None:
        Logger.level = level

    @staticmethod
    def is_debug() -> bool:
        return Logger.level <= 0

    @staticmethod
    def debug(*args: Any) -> None:
        _write(0, args)

    @staticmethod
    def info(*args: Any) -> None:
        _write(1, args)

    @staticmethod
    def warn(*args: Any) -> None:
        _write(2, args)

    @staticmethod
    def error(*args: Any) -> None:
        _write(3, args)

    warning = warn


class Timer:
    """Timer: `with Timer("loading") as timer: …`, then `timer.duration` in seconds. Without a title it logs nothing."""

    def __init__(self, title: str = ""):
        self.title = title
        self._began: float | None = None
        self._took: float | None = None

    @property
    def duration(self) -> float:
        if self._took is not None:
            return self._took
        return 0.0 if self._began is None else time.perf_counter() - self._began

    def __enter__(self) -> Timer:
        if self.title:
            Logger.info(f"Timer starts:\t '{self.title}'")
        self._took, self._began = None, time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._took = self.duration
        if self.title:
            Logger.info(f"Timer finishes:\t '{self.title}', takes {to_readable_time(self._took)}")


def _write(level: int, args: tuple[Any, ...]) -> None:
    if Logger.level > level:
        return
    line = " ".join([get_log_time(country_city=Logger.country_city), _MARKS[level], *map(str, args)])
    for stream in (Logger.outstream or sys.stdout, Logger._copy):
        if stream is not None:
            print(line, file=stream, flush=True)


def _opened(out_file: str, append: bool) -> TextIO:
    return Path(out_file).open("a" if append else "w", encoding="utf-8")


def _now(country_city: str | None) -> datetime.datetime:
    return datetime.datetime.now(ZoneInfo(country_city) if country_city else datetime.UTC)


def _stamp(when: datetime.datetime, utc_time: bool, country_city: str | None) -> str:
    city = (country_city or "utc").rpartition("/")[2] if utc_time else "local"
    return f"{city}_{when.strftime('%Y-%m-%d_%Hh-%Mm-%Ss')}"
