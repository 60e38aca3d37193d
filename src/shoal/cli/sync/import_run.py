"""Upload of a run directory to a server in small parts. Each part is idempotent, so an import can be repeated at any time.

Lines are numbered: the server tells how many it has of each file, and ignores lines that it has already. After a crash or a
lost connection, the next pass therefore continues at the first line that the server does not have.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.run.run_files import RunFiles, skip_lines, whole_lines
from shoal.core.errors import NameTaken, ShoalError, StorageFull, Unreachable
from shoal.core.records import Kind, kind_pattern

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.jobs import JobSummary
    from shoal.core.metrics import RunImport, RunImported

_STEP = re.compile(rb"^.{0,60}" + kind_pattern(Kind.STEP))


@dataclass(slots=True)
class Brought:
    """Counts of newly sent items."""

    records: int = 0
    log_lines: int = 0
    media: int = 0
    checkpoints: int = 0
    bugs: int = 0
    problems: list[str] = field(default_factory=list)


class Importer:
    """Import of one run. `pass_once` sends what is new since the last call."""

    def __init__(self, client: Client, root: Path, name: str | None = None):
        self._client, self._files, self._name = client, RunFiles(root), name
        self.brought = Brought()
        self._job: RunImported | None = None
        self._at: dict[str, tuple[int, int]] = {}
        """Part (`metric/0`, `log/rank-0.log`) → offset and number of the next line to send."""
        self._kept: dict[str, Any] = {}
        """Checkpoint → its files as they were when it was sent."""

    @property
    def root(self) -> Path:
        return self._files.root

    def pass_once(self) -> JobSummary:
        from shoal.agent.data.checkpoint_uploader import candidates

        begun = self._job = self._job or self._begin()
        self._read_what_is_there(begun)
        for rank, path in self._files.spools():
            self._bring_spool(begun.job.id, rank, path)
        for rank, path in self._files.logs():
            self._bring_log(begun.job.id, rank, path)
        state = self._files.state()
        for name, files in candidates(self.root / "checkpoints"):
            self._bring_checkpoint(begun.job.id, name, files, is_over=state.status.is_terminal)
        return self._client.runs.set_state(begun.job.id, state)

    def _begin(self) -> RunImported:
        about = self._files.describe(self._name)
        try:
            return self._client.runs.begin(about)
        except NameTaken:
            if self._name is not None:
                raise
            return self._client.runs.begin(_another_name(about))

    def _read_what_is_there(self, begun: RunImported) -> None:
        """Skip the lines that the server has; those of rank 0 are still read, as they tell the run's progress."""
        for rank, path in self._files.spools():
            part = f"metric/{rank}"
            if part not in self._at:
                self._at[part] = skip_lines(path, begun.heads.get(part, 0))
                if rank == 0:
                    self._note_first(path, self._at[part][0])
        for _, path in self._files.logs():
            part = f"log/{path.name}"
            if part not in self._at:
                self._at[part] = skip_lines(path, begun.heads.get(part, 0))

    def _note_first(self, path: Path, end: int) -> None:
        for offset, lines in whole_lines(path, 0):
            if offset - sum(len(line) + 1 for line in lines) >= end:
                return
            for _, record in _relevant(lines):
                self._files.ending.note(record)

    def _bring_spool(self, job: str, rank: int, path: Path) -> None:
        part = f"metric/{rank}"
        offset, number = self._at[part]
        for behind, lines in whole_lines(path, offset):
            for at, record in _relevant(lines):
                if rank == 0:
                    self._files.ending.note(record)
                if record.get("k") == Kind.MEDIA:
                    self._bring_media(job, rank, number + at, record)
                elif record.get("k") == Kind.BUG:
                    self._bring_bug(job, rank, number + at, record)
            # A damaged line (cut off by a kill) is sent as null, so that the numbers of the lines stay the same.
            sent = [line if line.startswith(b"{") else b"null" for line in lines]
            self._send(job, "metric", str(rank), number, sent)
            number += len(lines)
            self.brought.records += len(lines)
            self._at[part] = (behind, number)

    def _bring_log(self, job: str, rank: int, path: Path) -> None:
        part = f"log/{path.name}"
        offset, number = self._at[part]
        for behind, lines in whole_lines(path, offset):
            when = round(min(path.stat().st_mtime, time.time()), 3)
            sent = [
                json.dumps({"t": when, "r": rank, "e": "out", "m": line.decode("utf-8", "replace")}).encode()
                for line in lines
            ]
            self._send(job, "log", path.name, number, sent)
            number += len(lines)
            self.brought.log_lines += len(lines)
            self._at[part] = (behind, number)

    def _send(self, job: str, stream: str, part: str, first: int, lines: list[bytes]) -> None:
        has = self._client.runs.send_lines(job, stream, part, first, lines)
        if has < first + len(lines):
            raise ShoalError(
                f"The server has {has} lines of {part}, fewer than it confirmed before.", hint="Run it again."
            )

    def _bring_media(self, job: str, rank: int, line: int, record: dict[str, Any]) -> None:
        from pydantic import ValidationError

        from shoal.agent.data.media import media_file
        from shoal.core.metrics import MediaCommit
        from shoal.store.pack import pack_files

        try:
            path = media_file(self.root / "spool", record)
            packed = pack_files({path.name: path})
            wanted = MediaCommit(
                rank=rank,
                n=line,
                t=record["t"],
                step=record["i"],
                name=record["name"],
                type=record["type"],
                mime=record.get("mime") or "application/octet-stream",
                manifest=packed.manifest,
            )
            self._client.runs.send_media(job, wanted, packed)
            self.brought.media += 1
        except (OSError, KeyError, ValidationError) as error:
            self.brought.problems.append(f"{record.get('type')} {record.get('name')!r} was skipped: {error}")

    def _bring_bug(self, job: str, rank: int, line: int, record: dict[str, Any]) -> None:
        from pydantic import ValidationError

        from shoal.agent.data.bug_capsules import capsule_files, wire_body
        from shoal.core.bugs import BugCommit
        from shoal.store.pack import pack_files

        try:
            packed = pack_files(capsule_files(self.root / "checkpoints", record))
            wanted = BugCommit.model_validate(wire_body(rank, line, record, packed.manifest.model_dump(mode="json")))
            self._client.runs.send_bug(job, wanted, packed)
            self.brought.bugs += 1
        except (Unreachable, StorageFull):
            raise  # the next pass sends it
        except (OSError, ShoalError, ValidationError) as error:
            self.brought.problems.append(f"bug capsule {record.get('name')!r} was skipped: {error}")

    def _bring_checkpoint(self, job: str, name: str, files: Any, *, is_over: bool) -> None:
        from shoal.agent.data.checkpoint_uploader import ROOT, SETTLE_S
        from shoal.agent.data.completeness import OWN, facts, problem
        from shoal.core.artifacts import Manifest
        from shoal.core.checkpoints import CheckpointCommit, CheckpointFacts
        from shoal.store.pack import Entry

        folder = self.root / "checkpoints"
        folder = folder if name == ROOT else folder / name
        paths = [path for path, _, _ in files]
        settled = is_over or OWN in paths or time.time() - max(m for _, _, m in files) / 1e9 > SETTLE_S
        if self._kept.get(name) == files or not settled or problem(folder, paths) is not None:
            return
        told = CheckpointFacts.model_validate(facts(name, folder, paths))
        wanted = CheckpointCommit(name=name, manifest=Manifest(files=[]), facts=told)
        try:
            self._client.runs.send_checkpoint(job, wanted, [Entry(path, folder / path) for path in paths])
        except OSError:
            if folder.exists():
                raise
            return  # the run has deleted it meanwhile, in favour of a newer one
        self._kept[name] = files
        self.brought.checkpoints += 1


def _another_name(about: RunImport) -> RunImport:
    """Return the import with the run's id appended to its name, for a second run of the same script."""
    return about.model_copy(update={"name": f"{about.name[:54]}-{about.run_id[:8]}"})


def _relevant(lines: list[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (index, record), but only the last of several step records in a row: parsing all would be slower than sending."""
    for at, line in enumerate(lines):
        if not _STEP.search(line) or at + 1 == len(lines) or not _STEP.search(lines[at + 1]):
            yield at, _record(line)


def _record(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
