"""Reader of a run directory's files: progress, state and end of the run. Does not use a server."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.run.run_dir import FACTS
from shoal.core.errors import NotFound
from shoal.core.records import Kind
from shoal.core.states import JobState

if TYPE_CHECKING:
    from shoal.core.metrics import RunImport, RunState

SILENT_S = 600.0
"""Seconds without new output after which a run that has not reported its end is considered stopped."""
BATCH_BYTES = 768 << 10
_RANK = re.compile(r"rank-(\d{1,9})\.jsonl")
_ENDS = {"finished": JobState.SUCCEEDED, "stopped": JobState.STOPPED, "failed": JobState.FAILED}
_STOPPED_CODES = (130, 143, -2, -15)


def find_runs(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run, else the runs directly below it."""
    if (folder / FACTS).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"*/{FACTS}"))
    if not found:
        raise NotFound(f"{folder} is not a run directory and contains none: there is no {FACTS}.")
    return found


class RunFiles:
    def __init__(self, root: Path):
        self.root = root.absolute()
        self.ending = Ending()

    @property
    def facts(self) -> dict[str, Any]:
        try:
            found = json.loads((self.root / FACTS).read_bytes())
        except (OSError, ValueError) as error:
            raise NotFound(f"{self.root / FACTS} cannot be read: {error}") from error
        return found if isinstance(found, dict) else {}

    def describe(self, name: str | None) -> RunImport:
        from shoal.core.metrics import RunImport

        facts = self.facts
        told = str(facts.get("name") or self.root.name)
        return RunImport(
            run_id=str(facts.get("id") or self._derived_id(facts)),
            name=name or re.sub(r"[^A-Za-z0-9._-]+", "-", told).strip("-._")[:63] or "run",
            created=_moment(facts.get("created")) or datetime.fromtimestamp((self.root / FACTS).stat().st_mtime, UTC),
            argv=[str(word) for word in facts.get("argv") or []],
            world_size=max(1, int(facts.get("world_size") or 1)),
            host=socket.gethostname(),
            path=str(self.root),
        )

    def spools(self) -> list[tuple[int, Path]]:
        """Return the spool files as (rank, file), rank 0 first."""
        folder = self.root / "spool"
        names = [(path, _RANK.fullmatch(path.name)) for path in (folder.iterdir() if folder.is_dir() else ())]
        return sorted((int(match[1]), path) for path, match in names if match)

    def logs(self) -> list[tuple[int, Path]]:
        found = []
        for path in sorted((self.root / "logs").glob("rank-*.log")):
            rank = path.stem.removeprefix("rank-")
            if rank.isdigit():
                found.append((int(rank), path))
        return found

    def state(self) -> RunState:
        """Return the state of the run; call it after the spools were read.

        It follows from the run's own end record, from the end that `shoal run` noted in run.json, or from silence.
        """
        from shoal.core.jobs import Progress, unfinished
        from shoal.core.metrics import RunState

        attempts = [a for a in self.facts.get("attempts") or [] if isinstance(a, dict)]
        last = attempts[-1] if attempts else {}
        status, reason, ended = self.ending.status, self.ending.why, self.ending.at
        code = last.get("exit_code")
        if last and not last.get("ended"):
            status = reason = None
        elif last.get("ended"):
            ended = _moment(last["ended"])
            if status is None or (status is JobState.SUCCEEDED and code != 0):
                status = JobState.SUCCEEDED if code == 0 else JobState.FAILED
                status = JobState.STOPPED if code in _STOPPED_CODES else status
            reason = reason or last.get("reason")
        if status is None and time.time() - self._last_write() > SILENT_S:
            status, reason = JobState.STOPPED, "the run stopped writing records without reporting an end"
            ended = datetime.fromtimestamp(self._last_write(), UTC)
        told = self.ending.progress.report()
        if told and status is not None:
            told = {**told, "eta_s": None, "eta_low_s": None, "eta_high_s": None}
            told = unfinished(told) if status is JobState.FAILED else told
        return RunState(
            status=status or JobState.RUNNING,
            reason=reason,
            exit_code=code if isinstance(code, int) else (0 if status is JobState.SUCCEEDED else None),
            progress=Progress.model_validate(told) if told else None,
            started=_moment(attempts[0].get("started")) if attempts else None,
            ended=ended if status else None,
        )

    def _last_write(self) -> float:
        files = [path for _, path in self.spools()] + [path for _, path in self.logs()] + [self.root / FACTS]
        return max(path.stat().st_mtime for path in files)

    def _derived_id(self, facts: dict[str, Any]) -> str:
        """Return an id for a run without one (written by other tools), made of facts that never change."""
        fixed = json.dumps([facts.get(key) for key in ("name", "created", "argv")] + [self.root.name])
        return hashlib.blake2b(fixed.encode(), digest_size=12).hexdigest()


@dataclass(slots=True)
class Ending:
    """Progress and end of a run, from the records of rank 0."""

    status: JobState | None = None
    why: str | None = None
    at: datetime | None = None
    progress: Any = field(default_factory=lambda: _progress())

    def note(self, record: dict[str, Any]) -> None:
        kind = record.get("k")
        if kind in (Kind.STEP, Kind.PROGRESS, Kind.FINISH):
            self.progress.note(record)
        if kind == Kind.STEP:
            self.status = self.why = self.at = None  # a new start record: the run was resumed
        elif kind == Kind.FINISH:
            self.status = _ENDS.get(str(record.get("status")))
            self.why = str(record["why"])[:2000] if record.get("why") else None
            at = record.get("t")
            self.at = datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) and 0 <= at < 1e11 else None


def whole_lines(path: Path, offset: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (offset after the lines, lines) of a growing file in batches; an incomplete last line is left for later."""
    with path.open("rb") as file:
        file.seek(offset)
        while lines := file.readlines(BATCH_BYTES):
            if not lines[-1].endswith(b"\n"):
                lines.pop()
            if not lines:
                return
            offset += sum(map(len, lines))
            yield offset, [line[:-1] for line in lines]


def skip_lines(path: Path, count: int) -> tuple[int, int]:
    """Return (offset, lines skipped) of the start of line number `count`, or of the end of the complete lines."""
    skipped = 0
    with path.open("rb") as file:
        while skipped < count:
            line = file.readline()
            if not line.endswith(b"\n"):
                return file.tell() - len(line), skipped
            skipped += 1
        return file.tell(), skipped


def _progress() -> Any:
    from shoal.agent.sdk_records.progress import RunProgress

    return RunProgress()


def _moment(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
