"""Takes checkpoints on all ranks: rank 0 copies and writes; the others only send it the state of their random generators.

Of a sharded model every rank copies and writes its own part (parts.py).
"""

# Why this is safe:
# - Every method is called by the training thread. Only `complete` and `done` in `start` run in the writer's thread; each of
#   the two threads has its own store connection (`_mine`, `_writers`). The shared values are single assignments (`last`) or
#   atomic list operations (`_unwanted`).
# - The copy is made while forward and backward run, because only an optimizer step changes the parameters. `before_step`
#   is called before every such step and waits for the copy. Other writes raise a tensor's version: the copy is discarded and
#   the save is taken again without overlap. All ranks watch the same versions (Watch), so that all of them repeat it.
# - `_buffers` are reused from save to save. The caller waits for, or skips, a save while `is_busy`, so the writer never reads
#   a buffer that the next copy overwrites.
# - No rank waits for another in the training thread (except with wait=True): a slow disk does not stop the training. Before a
#   sharded save the ranks ask each other whether one is still writing, so that all of them take it or none does.

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from shoal.sdk.saving.parts import Places, Writing
from shoal.sdk.saving.peers import Peers
from shoal.sdk.saving.rng import rng_state
from shoal.sdk.saving.shards import SKELETON, Split
from shoal.sdk.saving.staging import Buffers, StagedCopy, Watch, storages
from shoal.sdk.saving.writer import Job, Writer, explained

torch: Any = import_module("torch")
logger = logging.getLogger(__name__)


class LiveState(NamedTuple):
    """State to save, as it is now."""

    files: dict[str, Any]
    """File name → contents; the tensors may be live ones. Empty on ranks that hold no state."""
    late: set[int]
    """Addresses of the storages that only an optimizer step changes."""
    state: dict[str, Any]
    """Small values: contents of training.pt without the random generators."""
    about: dict[str, Any]
    split: Split | None = None
    """The state of a sharded model, instead of `files` and `late`."""


class Saver:
    """Takes checkpoints. The training thread of every rank calls it, at the same steps."""

    def __init__(
        self,
        directory: Path,
        *,
        keep: int,
        peers: Callable[[], Peers],
        is_main: bool,
        session: str,
        warn: Callable[[str, str], None],
        committed: Callable[[int, Path], None],
    ):
        self._is_main, self._session, self._warn, self._committed = is_main, session, warn, committed
        self._mine, self._writers = peers(), peers()
        self._writer = Writer(directory, keep=keep, warn=warn)
        self.places: Places | None = None
        """Folders of the ranks; set before a sharded save."""
        self._buffers = Buffers()
        self._open: tuple[StagedCopy, Job] | None = None
        self._watch: Watch | None = None
        self._last: tuple[int, int] = (-1, 0)
        self._overlap = True
        self.is_torn = False
        """True if a save must be repeated, at once and without overlap: something wrote to the parameters meanwhile."""
        self.skipped = 0
        self._unwanted: list[str] = []
        self.last: Path | None = None

    @property
    def is_busy(self) -> bool:
        return self._writer.is_busy or self._open is not None

    def start(self, step: int, taken: LiveState, *, overlap: bool) -> Job | None:
        """Start a save; return its job on the ranks that write, None on the others.

        The caller must have waited for (or skipped because of) a save in progress on rank 0; of a sharded one, on any rank.
        """
        number = self._number(step)
        rng = rng_state()
        overlap = overlap and self._overlap
        if taken.split is not None:
            return self._start_part(step, number, taken, taken.split, rng, overlap)
        if not self._is_main:
            self._mine.store_state(number, rng)
            self._watch = Watch(taken.files, taken.late) if overlap else None
            return None
        files = {**taken.files, "training.pt": taken.state}
        staged = StagedCopy(step, files, taken.late, self._buffers, overlap=overlap)

        def complete(copied: StagedCopy) -> Mapping[str, Any]:
            states = self._writers.gather(number, rng)
            while self._unwanted:
                self._writers.drop(self._unwanted.pop())
            return {**copied.files, "training.pt": {**copied.files["training.pt"], "rng": states}}

        def done(path: Path | None) -> None:
            if path is not None:
                self.last = path
                self._committed(step, path)
            self._writers.store_outcome(number, saved=path is not None)

        return self._start(staged, Job(staged=staged, about=taken.about, complete=complete, done=done))

    def _start_part(self, step: int, number: str, taken: LiveState, split: Split, rng: Any, overlap: bool) -> Job:
        assert self.places is not None  # noqa: S101
        places = self.places
        watched, late = split.late()
        files: dict[str, Any] = {"part": split.mine()}
        if self._is_main:
            files |= {SKELETON: split.skeleton, "training.pt": taken.state}
        # Ranks hold parts of different sizes, but all of them must notice the same writes: no part is too small to watch.
        self._watch = Watch({"all": watched}, late, least=0) if overlap else None
        staged = StagedCopy(step, files, late, self._buffers, overlap=overlap, least=0)
        writing = Writing(step, number, self._session, split.kept(), rng, taken.about)

        def done(path: Path | None) -> None:
            if self._is_main:
                if path is not None:
                    self.last = path
                    self._committed(step, path)
                self._writers.store_outcome(number, saved=path is not None)

        return self._start(
            staged,
            Job(
                staged=staged,
                about=taken.about,
                complete=lambda copied: copied.files,
                done=done,
                write=lambda copied: writing.write(copied, places, self._writers),
            ),
        )

    def _start(self, staged: StagedCopy, job: Job) -> Job:
        self._open = (staged, job)
        if not staged.is_copying:
            self.before_step()
        return job

    def skip(self, step: int) -> None:
        """Skip this save on rank 0, which is still writing the one before. The other ranks need not know."""
        self._unwanted.append(self._number(step))
        self.skipped += 1

    def before_step(self) -> None:
        """Wait until the copy is complete, and start the writer. Called by the training thread before parameters change."""
        unchanged = True
        if self._watch is not None:
            watch, self._watch = self._watch, None
            unchanged = watch.is_unchanged()
        if self._open is not None:
            (staged, job), self._open = self._open, None
            unchanged = staged.complete() and unchanged
            if unchanged:
                self._writer.start(job)
        self._found_torn(not unchanged)

    def wait(self, job: Job | None, step: int) -> None:
        """Wait until that save is on disk. Rank 0 raises if it failed; the other ranks raise if they get no answer."""
        if job is not None:
            self.before_step()
            job.finished.wait()
            if job.error is not None:
                raise explained(job.error)
        if not self._is_main:
            self._mine.wait_for_outcome(f"{self._last[0]}-{self._last[1]}")

    def wait_idle(self) -> None:
        self.before_step()
        self._writer.wait()

    def close(self, timeout_s: float | None, *, hopeless: bool) -> bool:
        self._mine.is_hopeless = self._writers.is_hopeless = hopeless
        self.before_step()
        if self.skipped:
            logger.info(
                "shoal: %d checkpoints were skipped because the previous one was still being written", self.skipped
            )
        return self._writer.close(timeout_s)

    def _number(self, step: int) -> str:
        """Return an identifier of the save that is the same on every rank, also if a step is saved twice."""
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
    """Return the addresses of the storages of all parameters and optimizer states."""
    found = {p.untyped_storage().data_ptr() for m in models for p in m.parameters() if p.layout == torch.strided}
    return found | storages(optimizer_states)
