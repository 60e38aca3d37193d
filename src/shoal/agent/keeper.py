"""Keeps the checkpoints a job writes: each sub-directory of the output directory is one, files directly in it another.
Those of the working directory are found by `workdir`.

A checkpoint is taken once it looks whole and has not changed for a while; what is taken was read unchanged from
beginning to end, and is visible only after the server has committed it. After a worker died, what changed just
before its death is not trusted.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.agent.bugs import holds_capsules
from shoal.agent.completeness import OWN, facts, is_half_made_name, problem
from shoal.agent.link import Link
from shoal.agent.uploads import commit
from shoal.agent.workdir import Candidate, Files, Workdir, is_state, list_files
from shoal.core.errors import AuthError, Fenced, NotFound, Refused, ShoalError, TimedOut

if TYPE_CHECKING:
    from shoal.store.pack import PackedTree

logger = logging.getLogger(__name__)

POLL_S = 1.0
SETTLE_S = 2.0
ROOT = "."
_AFTER_FAILURE_S = 5.0


@dataclass(slots=True)
class _Known:
    files: Files
    since: float
    """When it was first seen like this, by the monotonic clock."""
    done: bool = False
    said: set[str] = field(default_factory=set)


class Keeper(threading.Thread):
    def __init__(
        self,
        output: Path,
        link: Link,
        say: Callable[[str], None],
        kept: Callable[[str], None] = lambda name: None,
        *,
        node: int = 0,
        workdir: Workdir | None = None,
        present: dict[str, Files] | None = None,
    ):
        """`kept` is called with the name of each checkpoint the server has committed.

        `workdir`: looks for checkpoints in the working directory. `present`: what was put back before the workers started,
        as `listed` gave it; it is the server's already, and is taken only once the script has changed it.
        """
        super().__init__(name="keeper", daemon=True)
        self._output, self._link, self._say, self._kept, self._node = output, link, say, kept, node
        self._workdir = workdir
        self._known = {name: _Known(files, 0.0, done=True) for name, files in (present or {}).items()}
        self._leave = threading.Event()
        self._news = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._given_up = False
        self._deadline = math.inf
        self._died_at = math.inf
        """When the first worker failed, by the clock that stamps files."""

    def run(self) -> None:
        while not self._leave.is_set() and not self._given_up:
            self._news.wait(POLL_S)
            self._news.clear()
            if self._leave.is_set():
                return
            try:
                self.look()
            except Exception:
                logger.exception("looking for checkpoints failed")

    def nudge(self) -> None:
        """A checkpoint was just committed: look now."""
        self._news.set()

    def worker_failed(self) -> None:
        """From now on quiet proves nothing: who would go on writing is dead. Only what had settled before counts."""
        self._died_at = min(self._died_at, time.time())

    def finish(self, *, all_well: bool) -> None:
        """The workers have ended: take what is left. `all_well`: they ended by themselves, without an error.

        After a failure the server must hear of it soon, so only a moment is spent on what is still on its way.
        """
        self._leave.set()
        self._news.set()
        if not all_well:
            self.worker_failed()
        self._deadline = math.inf if all_well else time.monotonic() + _AFTER_FAILURE_S
        if not self._given_up:
            self.look(settle_s=0.0 if all_well else SETTLE_S, last=True)

    def look(self, *, settle_s: float = SETTLE_S, last: bool = False) -> None:
        """Take every checkpoint that is new, whole and settled."""
        with self._one_at_a_time:
            for found in listed(self._output, self._workdir, now=last):
                known = self._known.get(found.name)
                if known is None or known.files != found.files:
                    said = known.said if known else set()
                    known = self._known[found.name] = _Known(found.files, time.monotonic(), said=said)
                if not known.done and self._is_settled(known, settle_s, last):
                    self._take(found, known, last)
            if self._workdir is not None and (text := self._workdir.warning()):
                self._say(f"[shoal] {text}")

    def _is_settled(self, known: _Known, settle_s: float, last: bool) -> bool:
        if any(path == OWN for path, _, _ in known.files):
            return True  # came by one rename, whole
        newest = max((m for _, _, m in known.files), default=0) / 1e9
        quiet = min(time.time(), self._died_at) - newest >= settle_s
        return quiet and (last or time.monotonic() - known.since >= settle_s)

    def _take(self, found: Candidate, known: _Known, last: bool) -> None:
        name, root = found.name, found.root
        wrong = problem(root, [path for path, _, _ in known.files], on_first_node=self._node == 0)
        if wrong is not None:
            if last and wrong not in known.said:
                known.said.add(wrong)
                self._say(f"[shoal] checkpoint {name} is not kept: {wrong}")
            return
        try:
            packed = _pack(root, known.files)
            if found.again() != known.files:
                return  # changed while it was read: the next look takes it
            body = {
                "name": name,
                "manifest": packed.manifest.model_dump(mode="json"),
                "facts": {**facts(_stepped(found), root, [p for p, _, _ in known.files]), "place": found.place},
            }
            commit(self._link, "/checkpoints", body, packed, self._check_time)
            known.done = True
            self._kept(name)
        except (Fenced, AuthError, NotFound) as error:
            logger.info("no more checkpoints are taken: %s", error)
            self._given_up = True
        except (Refused, ShoalError, OSError) as error:
            if not root.exists():
                return  # its own script has replaced it by a newer one
            logger.warning("checkpoint %s: %s", name, error)
            if str(error) not in known.said:
                known.said.add(str(error))
                self._say(f"[shoal] checkpoint {name} could not be kept yet: {error}")

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TimedOut("there was no time left to send it after a worker failed")


def _stepped(found: Candidate) -> str:
    """Return the name that may say a step. Folders of the working directory are named by what they are for."""
    return found.name if found.place == "output" else ""


def listed(output: Path, workdir: Workdir | None = None, *, now: bool = True) -> list[Candidate]:
    """Return all that may be a checkpoint. `now`: look at the working directory even if that was done a moment ago."""
    found = [
        Candidate(name, root, files, lambda root=root, deep=name != ROOT: tuple(list_files(root, deep=deep)))  # type: ignore[misc]
        for name, files in candidates(output)
        for root in [output if name == ROOT else output / name]
    ]
    return found + (_not_twice(workdir.candidates(now=now), found) if workdir is not None else [])


def _not_twice(own: list[Candidate], output: list[Candidate]) -> list[Candidate]:
    """Leave out what stands in the output directory too: callbacks link there what a Trainer wrote to its own folder."""
    known = {_same(file) for candidate in output for file in candidate.files}
    return [c for c in own if not all(_same(file) in known for file in c.files if is_state(file[0]))]


def _same(file: tuple[str, int, int]) -> tuple[str, int, int]:
    """Return what a link, or a copy with its times, has in common with a file: name, size and time."""
    return file[0].rpartition("/")[2], file[1], file[2]


def candidates(output: Path) -> list[tuple[str, Files]]:
    """What may be a checkpoint, oldest first: the order they are taken in is the order they count in."""
    try:
        entries = list(os.scandir(output))
    except FileNotFoundError:
        return []
    found = [(ROOT, tuple(list_files(output, deep=False)))]
    for entry in entries:
        is_candidate = entry.is_dir(follow_symlinks=False) and not is_half_made_name(entry.name)
        if is_candidate and not holds_capsules(output / entry.name):
            found.append((entry.name, tuple(list_files(output / entry.name, deep=True))))
    return sorted(((n, f) for n, f in found if f), key=lambda c: (max(m for _, _, m in c[1]), c[0]))


def _pack(root: Path, files: Files) -> PackedTree:
    from shoal.store.pack import pack_files

    return pack_files({path: root / path for path, _, _ in files})
