"""Public names of a package that are loaded on first use, so that importing the package is fast."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    `homes` maps each public name to its module; `.module` is a module of the package. A name that equals the name of its module
    stands for the module itself.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name], package)
        return module if module.__name__ == f"{package}.{name}" else getattr(module, name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
