"""Uploads the checkpoints a job writes: each folder in the output directory is one, the files directly in it are another.

Checkpoints in the working directory are found by `workdir_checkpoints`. A checkpoint is uploaded once it looks complete and
has not changed for SETTLE_S. Files that changed just before a worker died are not trusted, except a checkpoint's only file of
weights whose end shows that it was written completely. A directory in which something always changes, such as a log beside the
weights, is uploaded without the changing files.

Why this is safe: `scan` runs in the uploader's thread and, at the end, in the main thread (`finish`); `_one_at_a_time` admits
one of them, and `_known` is used only under it. Other threads only set events and times. A checkpoint that the script changes
while it is read is not committed: its files are listed before and after packing, and each chunk is checked against its hash
when it is sent. A checkpoint becomes visible only by the server's commit, so a crash of the agent never leaves a partial one.
After a failure `finish` sets a deadline first, which also stops an upload that is under way in the other thread.
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

from shoal.agent.data.bug_capsules import holds_capsules
from shoal.agent.data.completeness import OWN, facts, is_half_made_name, is_whole, problem
from shoal.agent.data.uploads import commit
from shoal.agent.data.workdir_checkpoints import Candidate, Files, Workdir, is_state, list_files
from shoal.agent.link import Link
from shoal.core.errors import AuthError, Fenced, NotFound, Refused, ShoalError, TimedOut

if TYPE_CHECKING:
    from shoal.store.pack import PackedTree

logger = logging.getLogger(__name__)

POLL_S = 1.0
SETTLE_S = 2.0
ROOT = "."
_AFTER_FAILURE_S = 5.0
_RESTLESS_S = 10.0
"""Seconds of change without a pause after which the files of the output directory that do not change are uploaded, and until
they are again."""


@dataclass(slots=True)
class _Known:
    files: Files
    since: float
    """Time on the monotonic clock when it was first seen with these files."""
    done: bool = False
    said: set[str] = field(default_factory=set)


class CheckpointUploader(threading.Thread):
    """Thread that scans for new checkpoints once per POLL_S and uploads them."""

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
        """Set up the thread. `kept` is called with the name of each checkpoint that the server has committed.

        `workdir` finds checkpoints in the working directory. `present` lists the checkpoints that were restored before the
        workers started, as returned by `listed`; the server has them, so they are uploaded only once the script has changed
        them.
        """
        super().__init__(name="checkpoint uploader", daemon=True)
        self._output, self._link, self._say, self._kept, self._node = output, link, say, kept, node
        self._workdir = workdir
        self._known = {name: _Known(files, 0.0, done=True) for name, files in (present or {}).items()}
        self._ending = threading.Event()
        self._news = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._calm: _Known | None = None
        """Last upload of the unchanging files of the output directory."""
        self._restless_since = math.inf
        self._settled_once: set[str] = set()
        """Files directly in the output directory that did not change for SETTLE_S at some time."""
        self._given_up = False
        self._deadline = math.inf
        self._died_at = math.inf
        """Time when the first worker failed, on the clock of file times."""

    def run(self) -> None:
        while not self._ending.is_set() and not self._given_up:
            self._news.wait(POLL_S)
            self._news.clear()
            if self._ending.is_set():
                return
            try:
                self.scan()
            except Exception:
                logger.exception("the scan for checkpoints failed")

    def nudge(self) -> None:
        """Scan now, because the script has just written a checkpoint."""
        self._news.set()

    def worker_failed(self) -> None:
        """Record that a worker failed: only files that were unchanged for long enough before this moment are trusted.

        A dead worker changes nothing more, so an unchanged file no longer shows that it is complete.
        """
        self._died_at = min(self._died_at, time.time())

    def finish(self, *, all_well: bool) -> None:
        """Upload what is left after the workers have ended. `all_well`: they ended by themselves, without an error.

        After a failure the server must learn of it soon, so only _AFTER_FAILURE_S are spent on uploads.
        """
        self._ending.set()
        self._news.set()
        if not all_well:
            self.worker_failed()
        self._deadline = math.inf if all_well else time.monotonic() + _AFTER_FAILURE_S
        if not self._given_up:
            self.scan(settle_s=0.0 if all_well else SETTLE_S, last=True)

    def scan(self, *, settle_s: float = SETTLE_S, last: bool = False) -> None:
        """Upload every checkpoint that is new, complete and has not changed for `settle_s`."""
        with self._one_at_a_time:
            for found in listed(self._output, self._workdir, now=last):
                known = self._known.get(found.name)
                if known is None or known.files != found.files:
                    said = known.said if known else set()
                    known = self._known[found.name] = _Known(found.files, time.monotonic(), said=said)
                is_settled = known.done or self._is_stable(found, known, settle_s, last)
                if is_settled and not known.done:
                    self._upload(found, known, last)
                if found.name == ROOT and found.place == "output":
                    self._upload_calm(found, settle_s, is_settled=is_settled, last=last)
            if self._workdir is not None and (text := self._workdir.warning()):
                self._say(f"[shoal] {text}")

    def _upload_calm(self, found: Candidate, settle_s: float, *, is_settled: bool, last: bool) -> None:
        """Upload the files that do not change, if others in the directory have changed all the time.

        Not while a file of weights is written again in place: what is left would be only a part of a checkpoint.
        """
        now = min(time.time(), self._died_at)
        calm = tuple(file for file in found.files if now - file[2] / 1e9 >= settle_s)
        names = {path for path, _, _ in calm}
        written_again = {p for p, _, _ in found.files if is_state(p)} & self._settled_once - names
        self._settled_once |= names
        self._restless_since = math.inf if is_settled else min(self._restless_since, time.monotonic())
        is_due = last or time.monotonic() - self._restless_since >= _RESTLESS_S
        if is_settled or not is_due or written_again or not any(map(is_state, names)):
            return
        if self._calm is None or self._calm.files != calm:
            self._calm = _Known(calm, time.monotonic())
        if not self._calm.done:
            again = found.again
            part = found._replace(files=calm, again=lambda: tuple(file for file in again() if file[0] in names))
            self._upload(part, self._calm, last)
            self._restless_since = time.monotonic()

    def _is_stable(self, found: Candidate, known: _Known, settle_s: float, last: bool) -> bool:
        if any(path == OWN for path, _, _ in known.files):
            return True  # the SDK writes it elsewhere and moves it here in one rename
        newest = max((m for _, _, m in known.files), default=0) / 1e9
        until = min(time.time(), self._died_at)
        quiet = until - newest >= settle_s
        if last and not quiet:
            return _is_one_whole_file(found, [path for path, _, m in known.files if until - m / 1e9 < settle_s])
        return quiet and (last or time.monotonic() - known.since >= settle_s)

    def _upload(self, found: Candidate, known: _Known, last: bool) -> None:
        name, root = found.name, found.root
        wrong = problem(root, [path for path, _, _ in known.files], on_first_node=self._node == 0)
        if wrong is not None:
            if last and wrong not in known.said:
                known.said.add(wrong)
                self._say(f"[shoal] checkpoint {name} is not uploaded: {wrong}")
            return
        try:
            packed = _pack(root, known.files)
            if found.again() != known.files:
                return  # changed while it was read: the next scan uploads it
            body = {
                "name": name,
                "manifest": packed.manifest.model_dump(mode="json"),
                "facts": {**facts(_stepped(found), root, [p for p, _, _ in known.files]), "place": found.place},
            }
            commit(self._link, "/checkpoints", body, packed, self._check_time)
            known.done = True
            self._kept(name)
        except (Fenced, AuthError, NotFound) as error:
            logger.info("the server accepts no more checkpoints: %s", error)
            self._given_up = True
        except (Refused, ShoalError, OSError) as error:
            if not root.exists():
                return  # the script has deleted it, usually after a newer one
            logger.warning("checkpoint %s: %s", name, error)
            if str(error) not in known.said:
                known.said.add(str(error))
                self._say(f"[shoal] checkpoint {name} could not be uploaded yet: {error}")

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TimedOut("there was no time left to upload it after a worker failed")


def _is_one_whole_file(found: Candidate, recent: list[str]) -> bool:
    """Return whether only one file changed recently, which is the only one with weights and shows that it is complete.

    With several files of weights, some of them might be of an earlier save than the others.
    """
    weights = [path for path, _, _ in found.files if is_state(path)]
    return len(weights) == 1 and recent == weights and is_whole(found.root / weights[0])


def _stepped(found: Candidate) -> str:
    """Return the name that may contain a step; '' for folders of the working directory, whose numbers may mean anything."""
    return found.name if found.place == "output" else ""


def listed(output: Path, workdir: Workdir | None = None, *, now: bool = True) -> list[Candidate]:
    """Return everything that may be a checkpoint. `now`: scan the working directory even if that was done a moment ago."""
    found = [
        Candidate(name, root, files, lambda root=root, deep=name != ROOT: tuple(list_files(root, deep=deep)))  # type: ignore[misc]
        for name, files in candidates(output)
        for root in [output if name == ROOT else output / name]
    ]
    return found + (_not_twice(workdir.candidates(now=now), found) if workdir is not None else [])


def _not_twice(own: list[Candidate], output: list[Candidate]) -> list[Candidate]:
    """Leave out candidates that are in the output directory too: callbacks may link a Trainer's checkpoints there."""
    known = {_same(file) for candidate in output for file in candidate.files}
    return [c for c in own if not all(_same(file) in known for file in c.files if is_state(file[0]))]


def _same(file: tuple[str, int, int]) -> tuple[str, int, int]:
    """Return name, size and time of a file, which are the same for a hard link or a copy that keeps times."""
    return file[0].rpartition("/")[2], file[1], file[2]


def candidates(output: Path) -> list[tuple[str, Files]]:
    """Return the possible checkpoints in the output directory, oldest first; the server orders them as they are uploaded."""
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
