"""Setup before the script starts: import hooks, argument parsing, and limits of memory and time.

The script runs in the main thread. The daemon thread of `_enforce_time_limit` only reads the probe's flags and raises Done in
the main thread; it writes the report itself only if the main thread has not finished within the grace period.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import ends, machine
from .probe import Done, Probe

_GRACE_S = 5.0
_FINISH_S = 120.0
"""Seconds for the final checks, which may write and read back a large checkpoint."""
_STEPS = ("max_steps", "steps", "num_steps", "total_steps", "train_steps", "iterations", "iters", "max_iters")
_EPOCHS = ("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "epoch")
_QUIET = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug", "CLEARML_OFFLINE_MODE": "1"}
"""Variables that disable experiment trackers, so that a preflight does not create runs there."""
Patch = Callable[[ModuleType, Probe], None]


def start(probe: Probe) -> None:
    os.environ.update(_QUIET, MLFLOW_TRACKING_URI=f"file://{tempfile.gettempdir()}/mlruns")
    _limit_memory(probe)
    _read_arguments(probe)
    patches = {
        "torch": _patch("torch_hooks"),
        "transformers.trainer": _patch("hugging_face"),
        "lightning.pytorch.trainer.trainer": _patch("lightning"),
        "pytorch_lightning.trainer.trainer": _patch("lightning"),
    }
    for name in [n for n in patches if n in sys.modules]:
        patches.pop(name)(sys.modules[name], probe)
    sys.meta_path.insert(0, _After(patches, probe))
    threading.Thread(target=_enforce_time_limit, args=(probe,), name="preflight", daemon=True).start()


def _patch(name: str) -> Patch:
    def apply(module: ModuleType, probe: Probe) -> None:
        try:
            importlib.import_module(f"{__package__}.{name}").install(module, probe)
        except Exception as error:  # an unknown version: run the script without this hook
            probe.doubt(f"{name}: {type(error).__name__}: {error}")

    return apply


class _After:
    """Import hook that calls a patch for a module after it was executed. The module is found in the usual way."""

    def __init__(self, patches: dict[str, Patch], probe: Probe):
        self._patches, self._probe = patches, probe
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
                patch(module, self._probe)

        loader.exec_module = exec_module


def _read_arguments(probe: Probe) -> None:
    """Hook argparse: record its errors, and the number of steps or epochs in the arguments."""
    parser: Any = argparse.ArgumentParser
    parse, error = parser.parse_known_args, parser.error

    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = parse(self, *args, **kwargs)
        probe.reach("arguments")
        values = vars(found[0])
        for fact, names in (("asked_steps", _STEPS), ("asked_epochs", _EPOCHS)):
            for name in names:
                if type(values.get(name)) is int and values[name] > 0:
                    probe.facts.setdefault(fact, values[name])
        return found

    def refuse(self: Any, message: str) -> Any:
        probe.find("arguments", message, where=probe.here())
        return error(self, message)

    parser.parse_known_args, parser.error = parse_known_args, refuse


def _limit_memory(probe: Probe) -> None:
    """Limit the memory of this process, so that too large allocations fail at their line instead of a kill from outside."""
    if machine.has_gpu():  # GPU drivers reserve very large address ranges
        return
    most = probe.asked.memory or machine.memory()
    if most:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _enforce_time_limit(probe: Probe) -> None:
    """End a script that exceeds the time limit, or that does not stop."""
    deadline = probe.began_at + probe.asked.limit_s
    while not probe.stopping and time.monotonic() < deadline:
        time.sleep(0.1)
    if not probe.stopping:
        if not probe.seen.steps:
            _report_slow_start(probe)
        probe.stopping = True
        main = threading.main_thread().ident
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main or 0), ctypes.py_object(Done))
    begun = time.monotonic()
    while not probe.complete and time.monotonic() - begun < (_FINISH_S if probe.finishing else _GRACE_S):
        time.sleep(0.1)
    if not probe.complete:
        ends.finish(probe)
    # A script that has ended may still wait for its own threads or processes.
    time.sleep(_GRACE_S)
    os._exit(0)


def _report_slow_start(probe: Probe) -> None:
    frame, where = sys._current_frames().get(threading.main_thread().ident or 0), None
    while frame is not None and where is None:
        if (path := probe.own(frame.f_code.co_filename)) is not None:
            where = (path, frame.f_lineno)
        frame = frame.f_back
    message = f"The script made no step within {probe.asked.limit_s:.0f} s."
    probe.find("slow-start", message, where=where)
