"""`shoal.init`: one run per process, and what happens to it when the process ends or forks."""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
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
    """Ends the run with the interpreter, and knows how that ended: atexit alone is told nothing."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._run: Run | None = None
        self._excepthook: Callable[..., Any] | None = None
        self._exit: Callable[..., NoReturn] | None = None

    def install(self, run: Run) -> None:
        self._run, self._excepthook, self._exit = run, sys.excepthook, sys.exit
        sys.excepthook = self._on_exception
        sys.exit = self._on_exit
        atexit.register(self._at_exit)

    def restore(self) -> None:
        atexit.unregister(self._at_exit)
        if self._excepthook is not None and sys.excepthook == self._on_exception:
            sys.excepthook = self._excepthook
        if self._exit is not None and sys.exit == self._on_exit:
            sys.exit = self._exit

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        self._error = error
        if self._excepthook is not None:
            self._excepthook(kind, error, trace)

    def _on_exit(self, status: Any = None, /) -> NoReturn:
        self._error = SystemExit(status)
        raise self._error

    def _at_exit(self) -> None:
        if self._run is not None:
            self._run.end_at_exit(self._error)


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
