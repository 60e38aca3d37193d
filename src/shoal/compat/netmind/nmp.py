"""The `nmp` object of NetMind scripts. Its methods are thin wrappers of the run of `shoal.init`."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.compat.netmind.group import ensure_group
from shoal.compat.netmind.registered import Registered
from shoal.sdk import library_loops, start

if TYPE_CHECKING:
    from shoal.sdk.run import Run

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Progress:
    """Progress and length of the training and its evaluations."""

    total_epoch: int | None = None
    step_per_epoch: int | None = None
    max_steps: int | None = None
    total_eval_epoch: int | None = None
    cur_eval_epoch: int = 0
    local_step: int = 0
    skip: int = 0
    """Steps that the script still has to skip to reach its position in the data."""
    knows_position: bool = True
    """True if the script has read its resume position, or starts at the beginning."""
    is_caught_up: bool = False
    """True once training has started in this process, after all skipped steps."""

    @property
    def total(self) -> int | None:
        if self.max_steps is not None:
            return self.max_steps
        return self.total_epoch * self.step_per_epoch if self.total_epoch and self.step_per_epoch else None


class NetmindPilot:
    """The object `nmp`, one per process. It works without a server, torchrun or a GPU."""

    def __init__(self, registered: Registered) -> None:
        self._registered = registered
        self._run: Run | None = None
        self._progress = _Progress()
        self._may_save = True
        self._last_step = 0
        """Last step of a finished run."""

    def init(self, load_checkpoint: bool = True, use_ddp: bool | None = None) -> None:
        """Start the run. A second call has no effect.

        `load_checkpoint=False` never resumes. `use_ddp` creates torch's process group unless there is one; the default is
        the environment variable USE_DDP.
        """
        if self._run is not None:
            return
        self._progress = _Progress()
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
                "nmp.init(use_ddp=False) with %d workers: each of them trains its own model. "
                "Use use_ddp=True, or run with one worker (--accels 1).",
                run.world_size,
            )

    def init_train_bar(
        self, total_epoch: int | None = None, step_per_epoch: int | None = None, max_steps: int | None = None
    ) -> None:
        """Set the length of the training, and resume from the checkpoint if there is one.

        Registered objects are loaded in place; `cur_epoch` and `should_skip_step` then tell the script where to continue.
        """
        if step_per_epoch is None and max_steps is None:
            raise ValueError("nmp.init_train_bar needs max_steps, or total_epoch and step_per_epoch")
        run, progress, registered = self._ready(), self._progress, self._registered
        progress.total_epoch, progress.step_per_epoch, progress.max_steps = total_epoch, step_per_epoch, max_steps
        registered.find_schedulers()
        if registered.models:
            library_loops.register(run, *registered.models, *registered.optimizers, *registered.schedulers)
            library_loops.restore(run)
            registered.on_scheduler = self._late_scheduler
        progress.skip = run.global_step % step_per_epoch if step_per_epoch else run.global_step
        progress.knows_position = not run.resumed
        if run.resumed and run.is_main:
            logger.info("nmp: continue training from step %d", run.global_step)
        library_loops.aim(run, total=progress.total, epochs=total_epoch)

    def init_eval_bar(self, total_epoch: int | None = None) -> None:
        """Set the number of evaluations."""
        self._progress.total_eval_epoch = total_epoch

    def should_skip_step(self) -> bool:
        """Return True if the current batch was trained on before the restart: `if nmp.should_skip_step(): continue`."""
        self._progress.knows_position = True
        if self._progress.skip > 0:
            self._progress.skip -= 1
            return True
        self._catch_up()
        return False

    def step(self, metrics: dict[str, Any] | None = None) -> None:
        """Count one training step with its metrics (numbers). Ends the process at the first step after `max_steps`."""
        run = self._ready()
        self._catch_up(steps=1)
        if self._progress.max_steps is not None and run.global_step >= self._progress.max_steps:
            self._exit_after_last_step()
        if not self._progress.knows_position:
            self._progress.knows_position = True
            library_loops.warn(
                run,
                "nmp_not_led",
                "the training was resumed, but the script neither reads nmp.cur_epoch nor calls nmp.should_skip_step(): "
                "the model continues from the checkpoint, but the data starts over",
            )
        run.step(metrics)
        self._progress.local_step += 1

    def evaluate(self, metrics: dict[str, Any]) -> None:
        """Record the metrics of an evaluation: numbers and strings."""
        self._ready().evaluate(metrics)
        self._progress.cur_eval_epoch += 1

    def join(self) -> None:
        """Start the run if the script has not called `nmp.init`. Used by the Trainer's callback."""
        self._ready()

    def finish_training(self) -> None:
        """Save the last state, show 100 % and end the run. A second call has no effect."""
        run, self._run = self._run, None
        if run is None:
            return
        run.finish()
        self._last_step = run.global_step
        self._registered.clear()

    @property
    def cur_step(self) -> int:
        """Training steps done, with those before a restart."""
        return self._run.global_step if self._run is not None else self._last_step

    @property
    def local_step(self) -> int:
        """Training steps done by this process."""
        return self._progress.local_step

    @property
    def cur_epoch(self) -> int:
        """Epoch to start or continue with; 0 if `step_per_epoch` is unknown."""
        self._progress.knows_position = True
        return self.cur_step // self._progress.step_per_epoch if self._progress.step_per_epoch else 0

    @property
    def step_per_epoch(self) -> int | None:
        return self._progress.step_per_epoch

    @property
    def total_epoch(self) -> int | None:
        return self._progress.total_epoch

    @property
    def max_steps(self) -> int | None:
        """Total training steps: as given, or epochs times steps per epoch."""
        return self._progress.total

    @property
    def cur_eval_epoch(self) -> int:
        return self._progress.cur_eval_epoch

    @property
    def total_eval_epoch(self) -> int | None:
        return self._progress.total_eval_epoch

    def save_pretrained(
        self, extra_dir_or_files: str | os.PathLike[str] | list[str] | None = None, force_save: bool = False
    ) -> None:
        """Save a checkpoint of the registered objects, with additional files or folders of the script.

        Scripts call this on one rank or on all; the first rank's call counts, and all ranks save together a few steps later.
        `force_save` is accepted and has no effect, because every call saves.
        """
        run = self._ready()
        given = extra_dir_or_files or []
        extra = [given] if isinstance(given, str | os.PathLike) else given
        if self._may_save and self._registered.models and run.is_main:
            library_loops.save_soon(run, [Path(e) for e in extra])

    def save_pretrained_by_step(self, save_steps: int) -> None:
        """Save if this step is a multiple of `save_steps`."""
        if save_steps > 0 and self.cur_step and self.cur_step % save_steps == 0:
            self.save_pretrained()

    def save_netmind_checkpoint(self) -> None:
        self.save_pretrained()

    def upload_checkpoint(self) -> None:
        """Save a checkpoint, which the platform then uploads."""
        self.save_pretrained()

    def last_checkpoint_from_netmind(self) -> str | None:
        """Return the checkpoint for `trainer.train(resume_from_checkpoint=…)`; None at the first start."""
        from shoal.integrations.hf import last_checkpoint

        return last_checkpoint()

    def from_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Load a checkpoint's weights into the registered model."""
        from shoal.compat.netmind.checkpoint import NetmindCheckPoint

        if not self._registered.models:
            raise ValueError("nmp.from_pretrained: register the model first: NetmindDistributedModel(model)")
        NetmindCheckPoint(path).load_model(self._registered.models[0])

    def gen_checkpoint_dir(self) -> str:
        """Create and return a folder for the script's own files, which is kept as a checkpoint of this step."""
        folder = self._ready().output_dir / f"checkpoint-{self.cur_step}"
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def download_checkpoint(
        self, job_id: str, token: str | None = None, url: str | None = None, destination: str | None = None
    ) -> str | None:
        """Download a job's newest checkpoint and return its folder; None if that failed (the log has the reason)."""
        try:
            from shoal.client.download import download_checkpoint

            return str(download_checkpoint(job_id, token, url=url, destination=destination))
        except Exception as error:
            hint = getattr(error, "hint", None)
            logger.error("download of job %s failed: %s%s", job_id, error, f" {hint}" if hint else "")
            return None

    def log(self, *words: object) -> None:
        """Print on the first worker only."""
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
        """Restore random state and late schedulers, once, when training starts after all skipped steps."""
        if self._progress.is_caught_up:
            return
        self._progress.is_caught_up = True
        if self._registered.on_scheduler is not None:
            self._registered.on_scheduler = lambda scheduler: self._late_scheduler(scheduler, steps)
            self._registered.find_schedulers()
        if steps == 0:
            library_loops.restore_generators(self._ready())

    def _late_scheduler(self, scheduler: Any, steps: int = 0) -> None:
        """Register a scheduler created after the resume point. `steps` is how often the script has already stepped it."""
        run, before = self._ready(), getattr(scheduler, "last_epoch", None)
        library_loops.register(run, scheduler)
        if run.resumed:
            library_loops.restore(run)
            for _ in range(steps if scheduler.last_epoch != before else 0):
                scheduler.step()

    def _exit_after_last_step(self) -> None:
        if self.get_rank() == 0:
            logger.warning(
                "nmp: all %s steps are done; code after the training loop is not run", self._progress.max_steps
            )
        self.finish_training()
        raise SystemExit(0)


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() and int(text) > 0 else None
