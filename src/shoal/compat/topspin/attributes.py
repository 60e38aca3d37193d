"""Attributes of parameters with a rule to them. Each keeps its value in the instance under its own name, as plain ones do."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from shoal.core.errors import UsageError


class Attribute:
    """A plain attribute that `accept` looks at first. Ranges pass: their values are looked at one by one."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        try:
            return self.read(vars(instance)[self._name])
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, instance: Any, value: Any) -> None:
        if is_range(value):
            value.values = [self.accept(instance, v, alone=False) for v in value.values]
        else:
            value = self.accept(instance, value, alone=True)
        vars(instance)[self._name] = value

    def read(self, value: Any) -> Any:
        return value

    def accept(self, instance: Any, value: Any, *, alone: bool) -> Any:
        """The value to keep; `alone` unless it is one of a range."""
        return value


class OnGpu(Attribute):
    """True only where there is a GPU. What was asked for is `vars(param)["use_gpu"]`."""

    def read(self, value: Any) -> Any:
        return value if is_range(value) else bool(value) and _has_gpu()


class Choice(Attribute):
    def __init__(self, *known: str):
        self._known = known

    def accept(self, instance: Any, value: Any, *, alone: bool) -> Any:
        if str(value).lower() not in self._known:
            raise UsageError(f"{self._name} is {value!r}", hint=f"it is one of {', '.join(self._known)}")
        return str(value).lower()


class TrueGradient(Attribute):
    """Version 1.2.1 had no true gradient with mixed precision, and its results are those without."""

    def accept(self, instance: Any, value: Any, *, alone: bool) -> Any:
        if value and alone:
            instance.use_amp = False
        return value


class PathWork(Attribute):
    """Setting it sets the folders below it."""

    def accept(self, instance: Any, value: Any, *, alone: bool) -> Any:
        if getattr(instance, "_workspace_created", False):
            raise UsageError("path_work cannot be changed: its folder is made already", hint="set it in __init__")
        value = os.path.normpath(value)
        for name in ("model", "log", "meta", "bug"):
            vars(instance)[f"path_{name}"] = f"{value}/{name}"
        instance.run_lock_file = f"{value}/meta/run.lock"
        instance.bug_lock_file = f"{value}/meta/bug.lock"
        return value


class Alias:
    """Another name for an attribute."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance, self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance, self._name, value)


def is_range(value: Any) -> bool:
    from shoal.compat.topspin.param import ParameterRange

    return isinstance(value, ParameterRange)


@cache
def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())
