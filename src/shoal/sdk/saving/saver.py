"""Taking a checkpoint on all ranks: who copies, who only leaves the state of its generators, and when it is too late."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from shoal.sdk.saving.peers import Peers
from shoal.sdk.saving.rng import rng_state
from shoal.sdk.saving.snapshot import Buffers, Snapshot, Watch, storages
from shoal.sdk.saving.writer import Job, Writer, explained

torch: Any = import_module("torch")
logger = logging.getLogger(__name__)


class Taken(NamedTuple):
    """What is to be saved, as it is at this instant."""

    files: dict[str, Any]
    """File name → contents; tensors may be live. Empty on ranks that hold none of it."""
    late: set[int]
    """Storages that only an optimizer's step changes."""
    state: dict[str, Any]
    """Small things: training.pt without the generators."""
    about: dict[str, Any]


class Saver:
    """Called by the training thread of every rank, at the same steps."""

    def __init__(
        self,
        directory: Path,
        *,
        keep: int,
        peers: Callable[[], Peers],
        is_main: bool,
        warn: Callable[[str, str], None],
        committed: Callable[[int, Path], None],
    ):
        self._is_main, self._warn, self._committed = is_main, warn, committed
        self._mine, self._writers = peers(), peers()
        self._writer = Writer(directory, keep=keep, warn=warn)
        self._buffers = Buffers()
        self._open: tuple[Snapshot, Job] | None = None
        self._watch: Watch | None = None
        self._last: tuple[int, int] = (-1, 0)
        self._overlap = True
        self.is_torn = False
        """A save has to be taken again, at once and without overlap: something wrote to the parameters meanwhile."""
        self.skipped = 0
        self._unwanted: list[str] = []
        self.last: Path | None = None

    @property
    def is_busy(self) -> bool:
        return self._writer.is_busy or self._open is not None

    def take(self, step: int, taken: Taken, *, overlap: bool) -> Job | None:
        """Begin a save; the job on rank 0. The caller has waited or skipped if one was under way there."""
        number = self._number(step)
        rng = rng_state()
        overlap = overlap and self._overlap
        if not self._is_main:
            self._mine.leave(number, rng)
            self._watch = Watch(taken.files, taken.late) if overlap else None
            return None
        files = {**taken.files, "training.pt": taken.state}
        snapshot = Snapshot(step, files, taken.late, self._buffers, overlap=overlap)

        def complete(copied: Snapshot) -> Mapping[str, Any]:
            states = self._writers.gather(number, rng)
            while self._unwanted:
                self._writers.drop(self._unwanted.pop())
            return {**copied.files, "training.pt": {**copied.files["training.pt"], "rng": states}}

        def done(path: Path | None) -> None:
            if path is not None:
                self.last = path
                self._committed(step, path)
            self._writers.tell(number, saved=path is not None)

        job = Job(snapshot=snapshot, about=taken.about, complete=complete, done=done)
        self._open = (snapshot, job)
        if not snapshot.is_copying:
            self.before_step()
        return job

    def skip(self, step: int) -> None:
        """Rank 0 is still writing the one before; the others need not know."""
        self._unwanted.append(self._number(step))
        self.skipped += 1

    def before_step(self) -> None:
        """Before parameters change, from the training thread: the copy has to be complete."""
        if self._watch is not None:
            watch, self._watch = self._watch, None
            self._found_torn(not watch.is_unchanged())
        if self._open is not None:
            (snapshot, job), self._open = self._open, None
            if snapshot.complete():
                self._writer.start(job)
            else:
                self._found_torn(True)

    def wait(self, job: Job | None, step: int) -> None:
        """Until that save is on disk, on every rank; raises if it is not going to be."""
        if job is not None:
            self.before_step()
            job.finished.wait()
            if job.error is not None:
                raise explained(job.error)
        elif not self._is_main:
            self._mine.hear(f"{self._last[0]}-{self._last[1]}")

    def wait_idle(self) -> None:
        self.before_step()
        self._writer.wait()

    def close(self, timeout_s: float | None, *, hopeless: bool) -> bool:
        self._mine.is_hopeless = self._writers.is_hopeless = hopeless
        self.before_step()
        if self.skipped:
            logger.info(
                "shoal: %d checkpoints were left out because the one before was still being written", self.skipped
            )
        return self._writer.close(timeout_s)

    def _number(self, step: int) -> str:
        """The same on every rank, also where a step is saved twice."""
        self._last = (step, self._last[1] + 1 if self._last[0] == step else 0)
        return f"{self._last[0]}-{self._last[1]}"

    def _found_torn(self, torn: bool) -> None:
        if torn and self._overlap:
            self._overlap = False
            self._warn(
                "written_in_between",
                "something other than an optimizer writes to the parameters during an iteration; "
                "checkpoints are now copied before the next iteration begins, which takes longer",
            )
        self.is_torn = self.is_torn or torn


def late_storages(models: list[Any], optimizer_states: list[Any]) -> set[int]:
    """Of parameters and of what optimizers keep."""
    found = {p.untyped_storage().data_ptr() for m in models for p in m.parameters() if p.layout == torch.strided}
    return found | storages(optimizer_states)
