"""Run by every interpreter that starts with this folder on its path: waits for torch to be imported, and imports nothing itself."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def _run_shadowed() -> None:
    """Another sitecustomize that ours hides would have run; let it."""
    rest = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class _Finder:
    """Finds torch as everybody does, and has it patched once it has been executed."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "torch" or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        # Many look for torch only to see whether it is there, so this may happen often before it is imported.
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_patch(module: ModuleType) -> None:
                execute(module)
                _package().apply(module)

            spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def _package() -> Any:
    """`emulate` under a name of its own: the interpreter may be one that does not know shoal."""
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
if os.environ.get("SHOAL_EMULATE_CUDA") == "1":
    sys.meta_path.insert(0, _Finder())
