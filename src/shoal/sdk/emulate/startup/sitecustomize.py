"""Run by every interpreter that starts with this folder on its path, before its script: so it imports next to nothing.

Workers of a gang learn to tell where they are (sdk/stacks.py) and to leave in order; with SHOAL_EMULATE_CUDA, torch is patched
once it is imported; with SHOAL_DEVICE, a worker whose torch cannot use that device ends there (core/device_promise.py); with
SHOAL_START_SEED, random generators begin at a known number (core/start_seed.py).
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import importlib.machinery
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_SETTLE_S = 3.0


def _run_shadowed() -> None:
    """Another sitecustomize that ours hides would have run; let it."""
    # What importlib.machinery and importlib.util are made of, without all that importing those brings along.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    rest = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _run_file(*parts: str) -> dict[str, Any]:
    """Run a file of Shoal's, given below the package: the interpreter may be one that does not know shoal."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
    path = os.path.join(package, *parts)  # noqa: PTH118
    found: dict[str, Any] = {"__name__": f"_shoal_{parts[-1].removesuffix('.py')}"}
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        exec(compile(file.read(), path, "exec"), found)  # noqa: S102
    return found


def _seed_generators() -> None:
    """Python's generator now, numpy's and torch's once they are imported."""
    import random

    seed: int | None = _run_file("core", "start_seed.py")["seed_of"](os.environ)
    if seed is None:
        return
    random.seed(seed)
    sys.meta_path.insert(0, _After("numpy.random", lambda module: module.seed(seed)))
    sys.meta_path.insert(0, _After("torch", lambda module: module.manual_seed(seed)))


def _settle() -> None:
    """Let torch's threads finish before the interpreter goes.

    A thread of gloo drops the tensors of its last collective by itself, a moment after the script was told that it is done. One
    that finds the interpreter ending aborts the process: a job that is done would have failed.
    """
    if "torch.distributed" not in sys.modules:
        return
    import time

    deadline = time.monotonic() + _SETTLE_S
    while _others_run() and time.monotonic() < deadline:
        time.sleep(0.001)


def _others_run() -> bool:
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        if thread != str(os.getpid()):
            try:
                with open(f"/proc/self/task/{thread}/stat", "rb") as file:  # noqa: PTH123
                    state = file.read().rpartition(b") ")[2][:1]
            except OSError:
                continue  # it has ended
            if state == b"R":
                return True
    return False


def _join_lightning() -> None:
    """Have Lightning train one model over the workers of a gang, or refuse (integrations/_lightning_gang.py)."""
    gang = _run_file("integrations", "_lightning_gang.py")
    for names, action in (("ACCELERATORS", "count_workers_as_devices"), ("TRAINERS", "guard")):
        for name in gang[names]:
            sys.meta_path.insert(0, _After(name, gang[action]))


class _After:
    """Finds one module as everybody does, and has something done with it once it has been executed."""

    def __init__(self, name: str, action: Callable[[Any], object]) -> None:
        self._name, self._action = name, action
        self._busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._name or self._busy:
            return None
        import importlib.util

        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        # Many look for torch only to see whether it is there, so this may happen often before it is imported.
        if spec is not None and spec.loader is not None:
            execute, action = spec.loader.exec_module, self._action

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                action(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


def _package() -> Any:
    """`emulate` under a name of its own: the interpreter may be one that does not know shoal."""
    import importlib.util

    name, folder = "_shoal_emulate", os.path.dirname(_HERE)  # noqa: PTH120
    spec = importlib.util.spec_from_file_location(
        name,
        os.path.join(folder, "__init__.py"),  # noqa: PTH118
        submodule_search_locations=[folder],
    )
    assert spec is not None and spec.loader is not None  # noqa: S101
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return importlib.import_module(f"{name}.patch")


_run_shadowed()
if ("USE_DDP" in os.environ or os.environ.get("SHOAL_EMULATE_CUDA") == "1") and os.path.isdir("/proc/self/task"):  # noqa: PTH112
    atexit.register(_settle)  # first, so that it is called last
_rank = os.environ.get("RANK") or os.environ.get("SHOAL_RANK")
if os.environ.get("SHOAL_SPOOL") and _rank:
    _run_file("sdk", "stacks.py")["listen"](os.environ["SHOAL_SPOOL"], _rank)
if os.environ.get("SHOAL_EMULATE_CUDA") == "1":
    sys.meta_path.insert(0, _After("torch", lambda module: _package().apply(module)))
elif os.environ.get("SHOAL_DEVICE") and os.environ.get("SHOAL_ALLOW_CPU") != "1":
    sys.meta_path.insert(0, _After("torch", lambda module: _run_file("core", "device_promise.py")["refuse"](module)))
if os.environ.get("SHOAL_START_SEED"):
    _seed_generators()
if os.environ.get("WORLD_SIZE", "1") != "1":
    _join_lightning()
