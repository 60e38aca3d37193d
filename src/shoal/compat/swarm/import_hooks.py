"""Import hooks for scripts of 2023.

They restore hivemind's old names, give metric schemas the pydantic version they were written for, and provide the files that
NetMind's guide says a script need not contain. Nothing is imported before the script imports it.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_FILES = Path(__file__).with_name("files")
_INSTALLED = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib"))


def install() -> None:
    """Install the hooks, once per process; modules that are already imported are patched now."""
    if any(isinstance(finder, _Mender) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Schemas())
    sys.meta_path.insert(0, _Mender())
    sys.meta_path.append(_Files())
    for name, mend in _MENDED.items():
        if name in sys.modules:
            mend(sys.modules[name])


def _hivemind(module: ModuleType) -> None:
    from shoal.compat.swarm import optim

    optim.mend(module)


def _arguments(module: ModuleType) -> None:
    from shoal.compat.swarm import parsing

    parsing.mend(module)


_MENDED: dict[str, Callable[[ModuleType], None]] = {"hivemind": _hivemind, "transformers.hf_argparser": _arguments}


class _Mender:
    """Finder that patches known modules after they have been executed."""

    def __init__(self) -> None:
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name not in _MENDED or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_mend(module: ModuleType) -> None:
                execute(module)
                _MENDED[name](module)

            spec.loader.exec_module = execute_and_mend  # type: ignore[method-assign]
        return spec


class _Schemas:
    """Finder for the script's modules with schemas for hivemind's DHT, which must be models of pydantic version 1."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
            return None
        file = Path(spec.origin).resolve()
        if str(file).startswith(_INSTALLED) or file.is_relative_to(_FILES.parents[2]):
            return None
        text = file.read_bytes()
        if b"hivemind.dht" not in text or b"pydantic" not in text:
            return None
        spec.loader = _VersionOne(name, spec.origin)
        spec.cached = None
        return spec


class _VersionOne(SourceFileLoader):
    """Loader that turns `from pydantic import …` into `from pydantic.v1 import …`. It writes no bytecode cache."""

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "pydantic":
                node.module = "pydantic.v1"
            elif isinstance(node, ast.Import):
                node.names = [
                    ast.alias("pydantic.v1", a.asname or "pydantic") if a.name == "pydantic" else a for a in node.names
                ]
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class _Files:
    """Last finder: provides the files that NetMind's guide mentions but leaves to the platform."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        file = _FILES / f"{name}.py"
        if "." in name or name == "__init__" or not file.is_file():
            return None
        return importlib.util.spec_from_file_location(name, file)
