"""Everything that is set up before the script begins: what to do once it imports torch, its arguments, memory, and time."""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import ends, machine
from .trial import Done, Trial

_GRACE_S = 5.0
_FINISH_S = 120.0
"""For a large checkpoint that is made and read back."""
_STEPS = ("max_steps", "steps", "num_steps", "total_steps", "train_steps", "iterations", "iters", "max_iters")
_EPOCHS = ("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "epoch")
_QUIET = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug", "CLEARML_OFFLINE_MODE": "1"}
"""Trackers that would show a run nobody has asked for."""
Patch = Callable[[ModuleType, Trial], None]


def start(trial: Trial) -> None:
    os.environ.update(_QUIET, MLFLOW_TRACKING_URI=f"file://{tempfile.gettempdir()}/mlruns")
    _limit_memory(trial)
    _read_arguments(trial)
    patches = {
        "torch": _patch("torch_hooks"),
        "transformers.trainer": _patch("hugging_face"),
        "lightning.pytorch.trainer.trainer": _patch("lightning"),
        "pytorch_lightning.trainer.trainer": _patch("lightning"),
    }
    for name in [n for n in patches if n in sys.modules]:
        patches.pop(name)(sys.modules[name], trial)
    sys.meta_path.insert(0, _After(patches, trial))
    threading.Thread(target=_mind_the_time, args=(trial,), name="preflight", daemon=True).start()


def _patch(name: str) -> Patch:
    def apply(module: ModuleType, trial: Trial) -> None:
        try:
            importlib.import_module(f"{__package__}.{name}").install(module, trial)
        except Exception as error:  # a version we do not know: the script is still worth running
            trial.doubt(f"{name}: {type(error).__name__}: {error}")

    return apply


class _After:
    """Has something done to a module once it has been executed. Finds it as everybody does."""

    def __init__(self, patches: dict[str, Patch], trial: Trial):
        self._patches, self._trial = patches, trial
        self._looking: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._patches or name in self._looking:
            return None
        self._looking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.discard(name)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader, name)
        return spec

    def _extend(self, loader: Any, name: str) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            if (patch := self._patches.pop(name, None)) is not None:
                patch(module, self._trial)

        loader.exec_module = exec_module


def _read_arguments(trial: Trial) -> None:
    """What argparse refuses, and how long a training the arguments ask for."""
    parser: Any = argparse.ArgumentParser
    parse, error = parser.parse_known_args, parser.error

    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = parse(self, *args, **kwargs)
        trial.reach("arguments")
        values = vars(found[0])
        for fact, names in (("asked_steps", _STEPS), ("asked_epochs", _EPOCHS)):
            for name in names:
                if type(values.get(name)) is int and values[name] > 0:
                    trial.facts.setdefault(fact, values[name])
        return found

    def refuse(self: Any, message: str) -> Any:
        trial.find("arguments", message, where=trial.here())
        return error(self, message)

    parser.parse_known_args, parser.error = parse_known_args, refuse


def _limit_memory(trial: Trial) -> None:
    """More than the machine has fails as an allocation, with its line, and not by a kill from outside."""
    if machine.has_gpu():  # whose driver reserves addresses without end
        return
    most = trial.asked.memory or machine.memory()
    if most:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _mind_the_time(trial: Trial) -> None:
    """Ends a script that gets nowhere, or does not let itself be stopped."""
    deadline = trial.began_at + trial.asked.limit_s
    while not trial.stopping and time.monotonic() < deadline:
        time.sleep(0.1)
    if not trial.stopping:
        if not trial.seen.steps:
            _tell_where(trial)
        trial.stopping = True
        main = threading.main_thread().ident
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main or 0), ctypes.py_object(Done))
    begun = time.monotonic()
    while not trial.complete and time.monotonic() - begun < (_FINISH_S if trial.finishing else _GRACE_S):
        time.sleep(0.1)
    if not trial.complete:
        ends.finish(trial)
    # A script that is over may still wait for threads or processes of its own.
    time.sleep(_GRACE_S)
    os._exit(0)


def _tell_where(trial: Trial) -> None:
    frame, where = sys._current_frames().get(threading.main_thread().ident or 0), None
    while frame is not None and where is None:
        if (path := trial.own(frame.f_code.co_filename)) is not None:
            where = (path, frame.f_lineno)
        frame = frame.f_back
    message = f"After {trial.asked.limit_s:.0f} s it had not made its first step."
    trial.find("slow-start", message, where=where)
