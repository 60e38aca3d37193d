"""Bringing a run directory into a server, piece by piece; each piece counts once, so that it may be done again at any time."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli._run_files import RunFiles, skip_lines, whole_lines
from shoal.core.errors import NameTaken, ShoalError, StorageFull, Unreachable

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.jobs import JobSummary
    from shoal.core.metrics import RunImport, RunImported

_STEP = re.compile(rb'^.{0,60}"k":\s*"s"')


@dataclass(slots=True)
class Brought:
    """What was new, counted."""

    records: int = 0
    log_lines: int = 0
    media: int = 0
    checkpoints: int = 0
    bugs: int = 0
    problems: list[str] = field(default_factory=list)


class Importer:
    """One run on its way. `pass_once` brings what is new since the last one."""

    def __init__(self, client: Client, root: Path, name: str | None = None):
        self._client, self._files, self._name = client, RunFiles(root), name
        self.brought = Brought()
        self._job: RunImported | None = None
        self._at: dict[str, tuple[int, int]] = {}
        """Part → offset and number of the next line."""
        self._kept: dict[str, Any] = {}
        """Checkpoint → its files as they were when it was brought."""

    @property
    def root(self) -> Path:
        return self._files.root

    def pass_once(self) -> JobSummary:
        from shoal.agent.keeper import candidates

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
        """Lines the server has are not sent again, but rank 0's say how far the run is."""
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
            for _, record in _telling(lines):
                self._files.ending.note(record)

    def _bring_spool(self, job: str, rank: int, path: Path) -> None:
        part = f"metric/{rank}"
        offset, number = self._at[part]
        for behind, lines in whole_lines(path, offset):
            for at, record in _telling(lines):
                if rank == 0:
                    self._files.ending.note(record)
                if record.get("k") == "m":
                    self._bring_media(job, rank, number + at, record)
                elif record.get("k") == "b":
                    self._bring_bug(job, rank, number + at, record)
            # A line that is none (torn by a kill) keeps its number.
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
            raise ShoalError(f"The server has {has} lines of {part}, fewer than before.", hint="Run it again.")

    def _bring_media(self, job: str, rank: int, line: int, record: dict[str, Any]) -> None:
        from pydantic import ValidationError

        from shoal.agent.media import media_file
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
            self.brought.problems.append(f"{record.get('type')} {record.get('name')!r} was left out: {error}")

    def _bring_bug(self, job: str, rank: int, line: int, record: dict[str, Any]) -> None:
        from pydantic import ValidationError

        from shoal.agent.bugs import capsule_files, wire_body
        from shoal.core.bugs import BugCommit
        from shoal.store.pack import pack_files

        try:
            packed = pack_files(capsule_files(self.root / "checkpoints", record))
            wanted = BugCommit.model_validate(wire_body(rank, line, record, packed.manifest.model_dump(mode="json")))
            self._client.runs.send_bug(job, wanted, packed)
            self.brought.bugs += 1
        except (Unreachable, StorageFull):
            raise  # the next pass brings it
        except (OSError, ShoalError, ValidationError) as error:
            self.brought.problems.append(f"bug capsule {record.get('name')!r} was left out: {error}")

    def _bring_checkpoint(self, job: str, name: str, files: Any, *, is_over: bool) -> None:
        from shoal.agent.completeness import OWN, facts, problem
        from shoal.agent.keeper import ROOT, SETTLE_S
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
            return  # the run has replaced it by a newer one meanwhile
        self._kept[name] = files
        self.brought.checkpoints += 1


def _another_name(about: RunImport) -> RunImport:
    """Two runs of one script have one name: the second gets its id at the end."""
    return about.model_copy(update={"name": f"{about.name[:54]}-{about.run_id[:8]}"})


def _telling(lines: list[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Of many steps in a row only the last: reading them all would take longer than sending them."""
    for at, line in enumerate(lines):
        if not _STEP.search(line) or at + 1 == len(lines) or not _STEP.search(lines[at + 1]):
            yield at, _record(line)


def _record(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
