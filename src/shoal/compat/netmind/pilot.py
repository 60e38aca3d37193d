"""`nmp`: the steering object of NetMind scripts. Every method is a few lines on `shoal.init`'s run."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.compat.netmind.group import ensure_group
from shoal.compat.netmind.registered import Registered
from shoal.sdk import adapt, start

if TYPE_CHECKING:
    from shoal.sdk.run import Run

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Bars:
    """How far the training and its evaluations are, and are to go."""

    total_epoch: int | None = None
    step_per_epoch: int | None = None
    max_steps: int | None = None
    total_eval_epoch: int | None = None
    cur_eval_epoch: int = 0
    local_step: int = 0
    skip: int = 0
    """Steps the script is still to pass over to get to its place in the data."""
    is_led: bool = True
    """The script has asked for its place, or starts at the beginning."""
    is_caught_up: bool = False
    """Training has really begun, in this process."""

    @property
    def total(self) -> int | None:
        if self.max_steps is not None:
            return self.max_steps
        return self.total_epoch * self.step_per_epoch if self.total_epoch and self.step_per_epoch else None


class NetmindPilot:
    """One per process, called `nmp`. Works without a server, without torchrun and without a GPU."""

    def __init__(self, registered: Registered) -> None:
        self._registered = registered
        self._run: Run | None = None
        self._bars = _Bars()
        self._may_save = True
        self._last_step = 0
        """Where a finished run got to."""

    def init(self, load_checkpoint: bool = True, use_ddp: bool | None = None) -> None:
        """Start the run. `use_ddp` makes torch's process group, unless there is one (default: env USE_DDP).

        `load_checkpoint=False` never resumes. A second call changes nothing.
        """
        if self._run is not None:
            return
        self._bars = _Bars()
        wanted = os.environ.get("USE_DDP", "").lower() in ("1", "true", "yes") if use_ddp is None else use_ddp
        estimating = os.environ.get("TIME_ESTIMATE_PROCESS") == "1"
        world = int(os.environ.get("WORLD_SIZE") or 1)
        run = self._run = start.current() or start.init(
            parallel="ddp" if wanted and world > 1 else "none",
            resume="auto" if load_checkpoint and not estimating else "never",
            keep_checkpoints=_number("SAVE_TOTAL_LIMIT") or 2,
            checkpoint_every=None if estimating else _number("SHOAL_CHECKPOINT_EVERY"),
            checkpoint_every_s=None if estimating else float(_number("SHOAL_CHECKPOINT_EVERY_S") or 600),
        )
        self._may_save = not estimating
        if wanted:
            ensure_group(run)
        elif run.world_size > 1 and run.is_main:
            logger.warning(
                "nmp.init(use_ddp=False) with %d workers: each of them trains a model of its own. "
                "Use use_ddp=True, or run it with one worker (--accels 1).",
                run.world_size,
            )

    def init_train_bar(
        self, total_epoch: int | None = None, step_per_epoch: int | None = None, max_steps: int | None = None
    ) -> None:
        """Say how long the training is, and go on from the checkpoint if there is one.

        What was registered by now is loaded in place; `cur_epoch` and `should_skip_step` then lead the script to its place.
        """
        if step_per_epoch is None and max_steps is None:
            raise ValueError("nmp.init_train_bar needs max_steps, or total_epoch and step_per_epoch")
        run, bars, registered = self._ready(), self._bars, self._registered
        bars.total_epoch, bars.step_per_epoch, bars.max_steps = total_epoch, step_per_epoch, max_steps
        registered.find_schedulers()
        if registered.models:
            adapt.register(run, *registered.models, *registered.optimizers, *registered.schedulers)
            adapt.restore(run)
            registered.on_scheduler = self._late_scheduler
        bars.skip = run.global_step % step_per_epoch if step_per_epoch else run.global_step
        bars.is_led = not run.resumed
        if run.resumed and run.is_main:
            logger.info("nmp: continue training from step %d", run.global_step)
        adapt.aim(run, total=bars.total, epochs=total_epoch)

    def init_eval_bar(self, total_epoch: int | None = None) -> None:
        """Say how many evaluations there will be."""
        self._bars.total_eval_epoch = total_epoch

    def should_skip_step(self) -> bool:
        """Whether the batch at hand was trained on before the restart: `if nmp.should_skip_step(): continue`."""
        self._bars.is_led = True
        if self._bars.skip > 0:
            self._bars.skip -= 1
            return True
        self._catch_up()
        return False

    def step(self, metrics: dict[str, Any] | None = None) -> None:
        """Count one training step and its metrics (numbers). Ends the process once `max_steps` are done and more come."""
        run = self._ready()
        self._catch_up(steps=1)
        if self._bars.max_steps is not None and run.global_step >= self._bars.max_steps:
            self._leave()
        if not self._bars.is_led:
            self._bars.is_led = True
            adapt.warn(
                run,
                "nmp_not_led",
                "the training was resumed, but the script neither reads nmp.cur_epoch nor calls nmp.should_skip_step(): "
                "the model goes on from where it was, the data starts over",
            )
        run.step(metrics)
        self._bars.local_step += 1

    def evaluate(self, metrics: dict[str, Any]) -> None:
        """Metrics of an evaluation: numbers and strings."""
        self._ready().evaluate(metrics)
        self._bars.cur_eval_epoch += 1

    def join(self) -> None:
        """Be ready: for the Trainer's callback, whose script may have left out `nmp.init`."""
        self._ready()

    def finish_training(self) -> None:
        """Save the last state, show 100 %, end the run. Calling it again does nothing."""
        run, self._run = self._run, None
        if run is None:
            return
        run.finish()
        self._last_step = run.global_step
        self._registered.clear()

    @property
    def cur_step(self) -> int:
        """Training steps done, those before a restart included."""
        return self._run.global_step if self._run is not None else self._last_step

    @property
    def local_step(self) -> int:
        """Training steps done by this process."""
        return self._bars.local_step

    @property
    def cur_epoch(self) -> int:
        """The epoch to start or go on with; 0 unless `step_per_epoch` is known."""
        self._bars.is_led = True
        return self.cur_step // self._bars.step_per_epoch if self._bars.step_per_epoch else 0

    @property
    def step_per_epoch(self) -> int | None:
        return self._bars.step_per_epoch

    @property
    def total_epoch(self) -> int | None:
        return self._bars.total_epoch

    @property
    def max_steps(self) -> int | None:
        """Training steps in all: as given, or epochs times steps per epoch."""
        return self._bars.total

    @property
    def cur_eval_epoch(self) -> int:
        return self._bars.cur_eval_epoch

    @property
    def total_eval_epoch(self) -> int | None:
        return self._bars.total_eval_epoch

    def save_pretrained(
        self, extra_dir_or_files: str | os.PathLike[str] | list[str] | None = None, force_save: bool = False
    ) -> None:
        """Save a checkpoint of what was registered, with files or folders of the script's own in it.

        Scripts call this on one rank or on all; the first rank's call counts, and all save together a few steps later.
        `force_save` is accepted: every call saves.
        """
        run = self._ready()
        given = extra_dir_or_files or []
        extra = [given] if isinstance(given, str | os.PathLike) else given
        if self._may_save and self._registered.models and run.is_main:
            adapt.save_soon(run, [Path(e) for e in extra])

    def save_pretrained_by_step(self, save_steps: int) -> None:
        """Save if this step is a multiple of `save_steps`."""
        if save_steps > 0 and self.cur_step and self.cur_step % save_steps == 0:
            self.save_pretrained()

    def save_netmind_checkpoint(self) -> None:
        self.save_pretrained()

    def upload_checkpoint(self) -> None:
        """Save now; the platform takes it from there."""
        self.save_pretrained()

    def last_checkpoint_from_netmind(self) -> str | None:
        """For `trainer.train(resume_from_checkpoint=…)`: the checkpoint of the run before, None at a first start."""
        from shoal.integrations.hf import last_checkpoint

        return last_checkpoint()

    def from_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Load a checkpoint's weights into the registered model."""
        from shoal.compat.netmind.checkpoint import NetmindCheckPoint

        if not self._registered.models:
            raise ValueError("nmp.from_pretrained: register the model first: NetmindDistributedModel(model)")
        NetmindCheckPoint(path).load_model(self._registered.models[0])

    def gen_checkpoint_dir(self) -> str:
        """A new folder for files of the script's own, kept as a checkpoint of this step."""
        folder = self._ready().output_dir / f"checkpoint-{self.cur_step}"
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def download_checkpoint(
        self, job_id: str, token: str | None = None, url: str | None = None, destination: str | None = None
    ) -> str | None:
        """Download a job's newest checkpoint; its folder, or None if that failed (the log says why)."""
        try:
            from shoal.client.download import download_checkpoint

            return str(download_checkpoint(job_id, token, url=url, destination=destination))
        except Exception as error:
            hint = getattr(error, "hint", None)
            logger.error("download of job %s failed: %s%s", job_id, error, f" {hint}" if hint else "")
            return None

    def log(self, *words: object) -> None:
        """Print once, not on every worker."""
        if self.get_rank() == 0:
            print(*words, flush=True)

    def get_rank(self) -> int:
        return self._run.rank if self._run is not None else int(os.environ.get("RANK") or 0)

    def get_local_rank(self) -> int:
        return self._run.local_rank if self._run is not None else int(os.environ.get("LOCAL_RANK") or 0)

    def _ready(self) -> Run:
        if self._run is None:
            self.init()
        assert self._run is not None  # noqa: S101
        return self._run

    def _catch_up(self, steps: int = 0) -> None:
        """Once, when training really begins: the generators go on where they were, late schedulers too."""
        if self._bars.is_caught_up:
            return
        self._bars.is_caught_up = True
        if self._registered.on_scheduler is not None:
            self._registered.on_scheduler = lambda scheduler: self._late_scheduler(scheduler, steps)
            self._registered.find_schedulers()
        if steps == 0:
            adapt.restore_generators(self._ready())

    def _late_scheduler(self, scheduler: Any, steps: int = 0) -> None:
        """One that comes after the resume point. `steps` are those the script has already made with it."""
        run, before = self._ready(), getattr(scheduler, "last_epoch", None)
        adapt.register(run, scheduler)
        if run.resumed:
            adapt.restore(run)
            for _ in range(steps if scheduler.last_epoch != before else 0):
                scheduler.step()

    def _leave(self) -> None:
        if self.get_rank() == 0:
            logger.warning(
                "nmp: all %s steps are done; what comes after the training loop is not run", self._bars.max_steps
            )
        self.finish_training()
        raise SystemExit(0)


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() and int(text) > 0 else None
