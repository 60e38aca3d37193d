"""Start-up code that every interpreter with this folder on its path runs before its script; it imports almost nothing.

It makes workers write their stacks on a signal (sdk/stacks.py), wait for torch's threads at exit, and warn if each of them
trains a model of its own (sdk/separate_models.py). With SHOAL_EMULATE_CUDA, it patches torch once imported; with SHOAL_DEVICE,
it ends a worker whose torch cannot use that device (core/device_check.py); with SHOAL_START_SEED, it seeds the random
generators (core/start_seed.py).
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
_THREADS_S = 3.0


def _run_shadowed() -> None:
    """Run another sitecustomize that this one hides."""
    # The internals of importlib.machinery and importlib.util, without the imports that those would cause.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    rest = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _run_file(*parts: str) -> dict[str, Any]:
    """Run a file of the shoal package by its path: the interpreter may not be able to import shoal."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
    path = os.path.join(package, *parts)  # noqa: PTH118
    found: dict[str, Any] = {"__name__": f"_shoal_{parts[-1].removesuffix('.py')}"}
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        exec(compile(file.read(), path, "exec"), found)  # noqa: S102
    return found


def _seed_generators() -> None:
    """Seed Python's generator now, and those of numpy and torch once they are imported."""
    import random

    seed: int | None = _run_file("core", "start_seed.py")["seed_of"](os.environ)
    if seed is None:
        return
    random.seed(seed)
    sys.meta_path.insert(0, _After("numpy.random", lambda module: module.seed(seed)))
    sys.meta_path.insert(0, _After("torch", lambda module: module.manual_seed(seed)))


def _wait_for_torch_threads() -> None:
    """Wait until torch's threads are idle before the interpreter ends.

    A gloo thread frees the tensors of its last collective a moment after the collective is reported as done. If the
    interpreter is ending then, the thread aborts the process, and a finished job would count as failed.
    """
    if "torch.distributed" not in sys.modules:
        return
    import time

    deadline = time.monotonic() + _THREADS_S
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


def _patch_lightning() -> None:
    """Make Lightning train one model over the workers of a gang, or refuse (integrations/_lightning_gang.py)."""
    gang = _run_file("integrations", "_lightning_gang.py")
    for names, action in (("ACCELERATORS", "count_workers_as_devices"), ("TRAINERS", "guard")):
        for name in gang[names]:
            sys.meta_path.insert(0, _After(name, gang[action]))


def _watch_for_separate_models() -> None:
    """Warn if the workers of a gang train separate models (sdk/separate_models.py)."""
    watch, name = _run_file("sdk", "separate_models.py")["watch"], "torch.optim.optimizer"
    if name in sys.modules:  # a warm worker
        watch(sys.modules[name])
    else:
        sys.meta_path.insert(0, _After(name, watch))


class _After:
    """Import hook that calls an action with one module after that module was executed."""

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
        # Libraries often only check whether torch exists, so this may run several times before it is imported.
        if spec is not None and spec.loader is not None:
            execute, action = spec.loader.exec_module, self._action

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                action(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


def _package() -> Any:
    """Load `emulate` by path under a private name: the interpreter may not be able to import shoal."""
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


if (
    __name__ == "sitecustomize"
):  # a warm worker (agent/prefork/script.py) runs this file in an interpreter that has run the other
    _run_shadowed()
if ("USE_DDP" in os.environ or os.environ.get("SHOAL_EMULATE_CUDA") == "1") and os.path.isdir("/proc/self/task"):  # noqa: PTH112
    atexit.register(_wait_for_torch_threads)  # first, so that it is called last
_rank = os.environ.get("RANK") or os.environ.get("SHOAL_RANK")
if os.environ.get("SHOAL_SPOOL") and _rank:
    _run_file("sdk", "stacks.py")["listen"](os.environ["SHOAL_SPOOL"], _rank)
if os.environ.get("SHOAL_EMULATE_CUDA") == "1":
    sys.meta_path.insert(0, _After("torch", lambda module: _package().apply(module)))
elif os.environ.get("SHOAL_DEVICE") and os.environ.get("SHOAL_ALLOW_CPU") != "1":
    sys.meta_path.insert(0, _After("torch", lambda module: _run_file("core", "device_check.py")["refuse"](module)))
if os.environ.get("SHOAL_START_SEED"):
    _seed_generators()
if os.environ.get("WORLD_SIZE", "1") != "1":
    _patch_lightning()
    _watch_for_separate_models()
