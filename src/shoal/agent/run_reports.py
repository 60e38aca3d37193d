"""All that the SDK inside the workers tells its agent: numbers to ship, progress, warnings, media, bugs, checkpoints just made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from shoal.agent.link import Link
from shoal.agent.media import Courier, logged_media
from shoal.agent.node import WorkDir
from shoal.agent.run_end import correct_end
from shoal.agent.run_progress import RunProgress
from shoal.agent.run_spool import RunSpool
from shoal.agent.spool import Spool
from shoal.agent.wire import STOP_REASON

STREAM = "metric"
_DRAIN_FIRST_S = 1.0
_TELL_FIRST_S = 3.0


class RunReports:
    """Reads the files of all ranks of this node. `look` is called now and then by one thread; `finish` by another, once."""

    def __init__(
        self,
        work: WorkDir,
        spool: Spool,
        link: Link,
        say: Callable[[str], None],
        redact: Callable[[bytes], bytes] | None = None,
    ):
        """Without `redact` (a salvage knows no secrets) free text is left out: it might hold one."""
        self._folder = work.spool("sdk")
        self._spool, self._say, self._outage = spool, say, link.outage
        self._progress = RunProgress()
        self._courier = Courier(self._folder, link, say, work.root / "output-checkpoint")
        self._reader = RunSpool(self._folder, work.root / "sdk-read.json", self, redact or bytes)
        self._tells_text = redact is not None
        self.on_checkpoint: Callable[[], None] = lambda: None

    def look(self) -> None:
        self._reader.look()

    def say_why(self, why: str) -> None:
        """To the SDK, which reads it once its process is told to stop."""
        with contextlib.suppress(OSError):  # before there is a folder, nobody is there to read it
            (self._folder / STOP_REASON).write_text(why, encoding="utf-8")

    def progress(self) -> dict[str, Any] | None:
        return self._progress.report()

    def last_look(self, exit_code: int | None = None, reason: str | None = None) -> None:
        """Read what the workers said last, unless it is very much; `drained` takes the rest.

        `exit_code`: that of the worker that failed, which counts for more than what the workers say of their end.
        """
        correct_end(self._folder, exit_code or 0, reason)
        self._reader.look(for_s=_DRAIN_FIRST_S)
        # So that whoever hears of the end can also see the reason.
        self._courier.told(_TELL_FIRST_S)

    def drained(self, timeout_s: float) -> bool:
        """Take in all there is, and wait until the media are brought; the numbers go on through the spool."""
        deadline = time.monotonic() + timeout_s
        self._reader.drain()
        return self._courier.drained(max(0.0, deadline - time.monotonic()))

    def bring_all_media(self) -> None:
        """Again, also those that came through already: the server takes each once."""
        for rank, line, record in logged_media(self._folder):
            known = record if self._tells_text else {**record, "text": ""}
            self._courier.add(rank, line, known)

    # What the reader calls.

    def ship(self, lines: list[bytes]) -> None:
        self._spool.append(lines)

    def heard(self, rank: int, line: int, record: dict[str, Any]) -> bool:
        kind = record.get("k")
        if kind in ("s", "p"):
            if rank == 0:
                self._progress.note(record)
            return bool(kind == "s")
        if kind == "f" and rank == 0:
            self._progress.note(record)
        if kind == "m" or (kind == "b" and self._tells_text):
            self._courier.add(rank, line, record)
        if kind == "x" and self._tells_text:
            from shoal.agent.drill import Drill

            Drill(self._outage, lambda: self._spool.empty, self._say).obey(record)
        if kind in ("m", "b", "x"):
            return False
        if kind in ("w", "h") and not self._tells_text:
            return False
        if kind == "w":
            self._say(f"[shoal] warning: {str(record.get('text'))[:4000]}")
        elif kind == "c":
            self.on_checkpoint()
        return True
