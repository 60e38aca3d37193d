"""`shoal.init` creates the one run of this process and ends or disowns it when the process exits or forks."""

from __future__ import annotations

import atexit
import builtins
import importlib
import importlib.util
import opcode
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

from shoal.core.errors import UsageError
from shoal.sdk.context import read_context
from shoal.sdk.determinism import make_deterministic
from shoal.sdk.device import demand_promised
from shoal.sdk.options import Options
from shoal.sdk.run import Run

_current: Run | None = None


def init(
    name: str | None = None,
    *,
    parallel: str = "auto",
    mesh: Mapping[str, int] | None = None,
    tp_plan: Callable[[Any], Mapping[str, Any]] | None = None,
    precision: str = "fp32",
    activation_checkpointing: str = "none",
    compile: bool = False,
    seed: int | None = None,
    deterministic: bool = False,
    max_steps: int | None = None,
    accumulate: int = 1,
    checkpoint_every: int | None = None,
    checkpoint_every_s: float | None = 600.0,
    keep_checkpoints: int = 2,
    whole_checkpoints: bool = False,
    resume: str | os.PathLike[str] = "auto",
    trackers: Sequence[Any] = (),
    config: Mapping[str, Any] | None = None,
    dir: str | os.PathLike[str] | None = None,
    device: str | None = None,
    extra: dict[str, Any] | None = None,
) -> Run:
    """Start the run of this process. There can be one run at a time per process.

    Args:
        name: Name of the run. Default: the name of the job, or of the script.
        parallel: How the model is spread over the workers: "auto" (ddp with several workers, else none), "ddp", "fsdp",
            "pipeline", "swarm" or "none".
        mesh: Sizes of several kinds of parallelism at once, such as {"ddp": 2, "fsdp": 4, "tp": 2}; the product is the number
            of workers. Axes: "ddp" (copies), "fsdp" (shards), "cp" (parts of sequences), "tp" (parts of matrices) in any
            combination, or "ddp" with "pipeline". With a pipeline also "num_microbatches".
        tp_plan: Function that gets the model and returns how "tp" divides its modules: patterns of names, such as
            "layers.*.mlp.up", with "column", "row", "gather" or a style of torch.distributed.tensor.parallel. Default: found
            in the model.
        precision: Type in which a model sharded by fsdp computes: "fp32" or "bf16". Weights, optimizer and sums of gradients
            stay fp32. For other kinds of parallelism use torch.autocast.
        activation_checkpointing: Activations of the model's repeated blocks that the backward pass computes again to save
            memory: "none", "selective" (keep what matrix products and attention give) or "full".
        compile: Compile each of the repeated blocks by itself (torch.compile).
        seed: Seed of the sample order and of the random generators. None: order from seed 0, generators untouched.
        deterministic: Use deterministic algorithms only, in the whole process, so that two runs on the same hardware have the
            same bits. Slower on GPUs; an operator that has no such algorithm raises a RuntimeError that names it.
        max_steps: Global steps to train for, counted over all attempts.
        accumulate: Iterations per optimizer step, at the world size the training was started with.
        checkpoint_every: Global steps between two checkpoints. None: by time only.
        checkpoint_every_s: Seconds between two checkpoints. None: by steps only.
        keep_checkpoints: How many of the newest checkpoints stay in the output directory.
        whole_checkpoints: Gather a sharded model (fsdp) on rank 0 and save it as one model.pt. Needs host memory for all of
            it. Default: each worker saves its own part; `shoal checkpoint consolidate` makes one file of them.
        resume: "auto" (SHOAL_RESUME_FROM, else the newest complete checkpoint in the output directory), "never", or the
            path of a checkpoint.
        trackers: Other trackers that receive the metrics: "tensorboard", "wandb", "mlflow" or objects with the methods of
            shoal.sdk.trackers.Tracker.
        config: Hyperparameters to show with the run.
        dir: Run directory outside the platform. Default: ./shoal-runs/<name>-<time>-<4 hex>.
        device: Device to train on. Default: the accelerator of this worker, else the CPU.
        extra: Options for adapters that are built on this API.

    Returns:
        The run. Use it directly or as a context manager.

    Example::

        run = shoal.init(max_steps=1000, seed=0)
        model, optimizer, loader = run.prepare(model, optimizer, loader)
        for batch in run.loop(loader):
            loss = model(batch).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step(loss=loss)
        run.finish()
    """
    global _current
    if _current is not None:
        raise UsageError("this process already has a run", hint="end it with run.finish() before the next shoal.init()")
    demand_promised()
    options = Options(
        name=name,
        parallel=parallel,
        mesh=mesh,
        tp_plan=tp_plan,
        precision=precision,
        activation_checkpointing=activation_checkpointing,
        compile=compile,
        seed=seed,
        deterministic=deterministic,
        max_steps=max_steps,
        accumulate=accumulate,
        checkpoint_every=checkpoint_every,
        checkpoint_every_s=checkpoint_every_s,
        keep_checkpoints=keep_checkpoints,
        whole_checkpoints=whole_checkpoints,
        resume=resume,
        trackers=trackers,
        config=config,
        dir=dir,
        device=device,
        extra=extra or {},
    )
    if deterministic:
        make_deterministic()
    exit_watch = _ExitWatch()
    run = Run(read_context(name, dir), options, on_finish=lambda: _forget(exit_watch))
    if seed is not None:
        _seed(seed)
    exit_watch.install(run)
    _current = run
    return run


def current() -> Run | None:
    """Return the run of this process, or None. Adapters use it when the script did not pass them a run."""
    return _current


class _ExitWatch:
    """Hooks that end the run when the interpreter exits and record how it exited; atexit itself gets no exit code.

    `sys.exit`, `exit` and `quit` are replaced to record their code. No hook of the interpreter sees a SystemExit that is
    raised directly: all that can be detected afterwards is that the main module was left by an exception. Its code is
    known to the parent process only (see shoal.agent.sdk_records.run_end).
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._run: Run | None = None
        self._excepthook: Callable[..., Any] | None = None
        self._exits: list[tuple[Any, str, Any]] = []
        """Replaced functions: module, name, original function."""
        self._main = _main_frame()

    def install(self, run: Run) -> None:
        self._run, self._excepthook = run, sys.excepthook
        sys.excepthook = self._on_exception
        for module, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
            if hasattr(module, name):  # `python -S` has neither exit nor quit
                self._exits.append((module, name, getattr(module, name)))
                setattr(module, name, self._on_exit)
        atexit.register(self._at_exit)

    def restore(self) -> None:
        atexit.unregister(self._at_exit)
        if self._excepthook is not None and sys.excepthook == self._on_exception:
            sys.excepthook = self._excepthook
        for module, name, before in self._exits:
            if getattr(module, name) == self._on_exit:
                setattr(module, name, before)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        self._error = error
        if self._excepthook is not None:
            self._excepthook(kind, error, trace)

    def _on_exit(self, status: Any = None, /) -> NoReturn:
        error = SystemExit(status)
        if threading.current_thread() is threading.main_thread():  # in any other thread it ends that thread
            self._error = error
        raise error

    def _at_exit(self) -> None:
        if self._run is None:
            return
        left_by_exception = None if self._main is None else _left_by_exception(self._main)
        if left_by_exception is False:
            self._error = None  # the script caught the exception and ran to its last line
        self._run.end_at_exit(self._error, unknown=bool(left_by_exception) and self._error is None)


def _main_frame() -> FrameType | None:
    """Return the frame of the main module, or None. Its last instruction stays readable after the module has ended."""
    frame: FrameType | None = sys._getframe()
    main = vars(sys.modules["__main__"])
    while frame is not None and not (frame.f_globals is main and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    return frame


def _left_by_exception(frame: FrameType) -> bool:
    """Check whether a frame that has ended was left by an exception and not by its last line."""
    return not opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_")


def _forget(exit_watch: _ExitWatch) -> None:
    global _current
    exit_watch.restore()
    _current = None


def _seed(seed: int) -> None:
    """Seed python, numpy and torch with the same seed on every rank, so that the models start equal."""
    import random

    random.seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        importlib.import_module("numpy").random.seed(seed % 2**32)
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch").manual_seed(seed)


def _after_fork() -> None:
    global _current
    if _current is not None:
        _current.abandon_in_child()
        _current = None


os.register_at_fork(after_in_child=_after_fork)
