"""`shoal.init`: one run per process, and what happens to it when the process ends or forks."""

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
from shoal.sdk.device import demand_promised
from shoal.sdk.options import Options
from shoal.sdk.run import Run

_current: Run | None = None


def init(
    name: str | None = None,
    *,
    parallel: str = "auto",
    mesh: Mapping[str, int] | None = None,
    seed: int | None = None,
    max_steps: int | None = None,
    accumulate: int = 1,
    checkpoint_every: int | None = None,
    checkpoint_every_s: float | None = 600.0,
    keep_checkpoints: int = 2,
    resume: str | os.PathLike[str] = "auto",
    trackers: Sequence[Any] = (),
    config: Mapping[str, Any] | None = None,
    dir: str | os.PathLike[str] | None = None,
    device: str | None = None,
    extra: dict[str, Any] | None = None,
) -> Run:
    """Begin a run; one at a time per process. What each argument means is said in Options."""
    global _current
    if _current is not None:
        raise UsageError("this process has a run already", hint="end it with run.finish() before the next shoal.init()")
    demand_promised()
    options = Options(
        name=name,
        parallel=parallel,
        mesh=mesh,
        seed=seed,
        max_steps=max_steps,
        accumulate=accumulate,
        checkpoint_every=checkpoint_every,
        checkpoint_every_s=checkpoint_every_s,
        keep_checkpoints=keep_checkpoints,
        resume=resume,
        trackers=trackers,
        config=config,
        dir=dir,
        device=device,
        extra=extra or {},
    )
    exit_watch = _ExitWatch()
    run = Run(read_context(name, dir), options, on_finish=lambda: _forget(exit_watch))
    if seed is not None:
        _seed(seed)
    exit_watch.install(run)
    _current = run
    return run


def current() -> Run | None:
    """The run of this process, for adapters that were not handed it."""
    return _current


class _ExitWatch:
    """Ends the run with the interpreter, and knows how that ended: atexit alone is told nothing.

    `sys.exit`, `exit` and `quit` tell their code here. A SystemExit that is raised without them passes by no hook of the
    interpreter: only that the main module was left by an exception can be seen afterwards, and its code is known to the
    parent process alone (see shoal.agent.run_end).
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._run: Run | None = None
        self._excepthook: Callable[..., Any] | None = None
        self._exits: list[tuple[Any, str, Any]] = []
        """Functions that were replaced: module, name, the function before."""
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
            self._error = None  # the script caught the exit or the exception, and came to its end
        self._run.end_at_exit(self._error, unknown=bool(left_by_exception) and self._error is None)


def _main_frame() -> FrameType | None:
    """Return the frame of the main module, if it is running; what it says of its last instruction stays readable later."""
    frame: FrameType | None = sys._getframe()
    main = vars(sys.modules["__main__"])
    while frame is not None and not (frame.f_globals is main and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    return frame


def _left_by_exception(frame: FrameType) -> bool:
    """Return whether a frame that has ended was left by an exception, and not by its last line."""
    return not opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_")


def _forget(exit_watch: _ExitWatch) -> None:
    global _current
    exit_watch.restore()
    _current = None


def _seed(seed: int) -> None:
    """The generators a model is about to be made with; the same on every rank, so that they start equal."""
    import random

    random.seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        importlib.import_module("numpy").random.seed(seed % 2**32)
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch").manual_seed(seed)


def _after_fork() -> None:
    global _current
    if _current is not None:
        _current.leave_to_parent()
        _current = None


os.register_at_fork(after_in_child=_after_fork)
