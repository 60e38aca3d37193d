"""Handles the records of the SDK inside the workers: metrics, progress, warnings, media, bugs and new checkpoints."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from shoal.agent.data.media import Courier, logged_media
from shoal.agent.link import Link
from shoal.agent.node.job_files import write_for_job
from shoal.agent.node.workdir import WorkDir
from shoal.agent.outbox.outbox import Outbox
from shoal.agent.sdk_records.progress import RunProgress
from shoal.agent.sdk_records.run_end import correct_end
from shoal.agent.sdk_records.spool import RunSpool
from shoal.agent.wire import STOP_REASON
from shoal.core.records import AGENT_ONLY, Kind

STREAM = "metric"
_DRAIN_FIRST_S = 1.0
_REPORT_BUGS_S = 3.0
_OF_THE_SDK = frozenset({Kind.STEP, Kind.EVALUATION, Kind.PROGRESS, Kind.CONFIG, Kind.DATA})


class RunReports:
    """Reads the files of all ranks of this node.

    One thread calls `poll` regularly; another calls `read_last` once at the end.
    """

    has_metrics = False
    """True if the script logs with the SDK, so that its output need not be read for metrics."""

    def __init__(
        self,
        work: WorkDir,
        outbox: Outbox,
        link: Link,
        say: Callable[[str], None],
        redact: Callable[[bytes], bytes] | None = None,
    ):
        """Set up the readers.

        Without `redact` (recovery does not know the secrets) free text is left out, as it may contain one.
        """
        self._folder = work.spool("sdk")
        self._outbox, self._say, self._outage = outbox, say, link.outage
        self._progress = RunProgress()
        self._courier = Courier(self._folder, link, say, work.root / "output-checkpoint")
        self._reader = RunSpool(self._folder, work.root / "sdk-read.json", self, redact or bytes)
        self._includes_text, self._redact = redact is not None, redact or bytes
        self.on_checkpoint: Callable[[], None] = lambda: None

    def poll(self) -> None:
        """Read the new records of all ranks."""
        self._reader.poll()

    def write_stop_reason(self, why: str) -> None:
        """Write why the workers are being stopped, for the SDK, which reads it when its process gets the signal."""
        with contextlib.suppress(OSError):  # without the folder no worker runs yet
            write_for_job(self._folder / STOP_REASON, why)

    def add(self, records: list[dict[str, Any]]) -> None:
        """Add records that did not come from a spool file; they have no line numbers."""
        lines = [
            json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode(errors="replace") for record in records
        ]
        self._outbox.append([self._redact(line) for line in lines])

    def progress(self) -> dict[str, Any] | None:
        return self._progress.report()

    def read_last(self, exit_code: int | None = None, reason: str | None = None) -> None:
        """Read the workers' last records for up to _DRAIN_FIRST_S; `drained` reads the rest.

        `exit_code` is that of the failed worker; it takes precedence over what the workers recorded about their end.
        """
        correct_end(self._folder, exit_code or 0, reason)
        self._reader.poll(for_s=_DRAIN_FIRST_S)
        # Bugs are reported before the end of the node, so that its reason is visible as soon as the end is.
        self._courier.bugs_reported(_REPORT_BUGS_S)

    def drained(self, timeout_s: float) -> bool:
        """Read all records and wait until the media are uploaded; return False after the timeout. Metrics go to the outbox."""
        deadline = time.monotonic() + timeout_s
        self._reader.drain()
        return self._courier.drained(max(0.0, deadline - time.monotonic()))

    def upload_all_media(self) -> None:
        """Upload all media and bugs again, for recovery; the server stores each only once."""
        for rank, line, record in logged_media(self._folder):
            known = record if self._includes_text else {**record, "text": ""}
            self._courier.add(rank, line, known)

    # Called by the reader (`spool.Listener`).

    def ship(self, lines: list[bytes]) -> None:
        self._outbox.append(lines)

    def on_record(self, rank: int, line: int, record: dict[str, Any]) -> bool:
        kind = record.get("k")
        if kind in _OF_THE_SDK:
            self.has_metrics = True
        if kind in (Kind.STEP, Kind.PROGRESS):
            if rank == 0:
                self._progress.note(record)
            return bool(kind == Kind.STEP)
        if kind == Kind.FINISH and rank == 0:
            self._progress.note(record)
        if kind == Kind.MEDIA or (kind == Kind.BUG and self._includes_text):
            self._courier.add(rank, line, record)
        if kind == Kind.DRILL and self._includes_text:
            from shoal.agent.node.drill import Drill

            Drill(self._outage, lambda: self._outbox.empty, self._say).obey(record)
        if kind in AGENT_ONLY:
            return False
        if kind in (Kind.WARNING, Kind.CONFIG) and not self._includes_text:
            return False
        if kind == Kind.WARNING:
            self._say(f"[shoal] warning: {str(record.get('text'))[:4000]}")
        elif kind == Kind.CHECKPOINT:
            self.on_checkpoint()
        return True
