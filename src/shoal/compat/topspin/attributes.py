"""Descriptors for parameters with special rules. Values are stored in the instance under the same name, as for plain ones."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from shoal.core.errors import UsageError


class Attribute:
    """Attribute whose values pass through `accept`. The values of a range are checked one by one."""

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
        """Return the value to store. `alone` is False for a value of a range."""
        return value


class OnGpu(Attribute):
    """Attribute that is true only if there is a GPU. The value that was set is in `vars(param)["use_gpu"]`."""

    def read(self, value: Any) -> Any:
        return value if is_range(value) else bool(value) and _has_gpu()


class Choice(Attribute):
    """Attribute with a fixed set of values; upper and lower case do not matter."""

    def __init__(self, *known: str):
        self._known = known

    def accept(self, instance: Any, value: Any, *, alone: bool) -> Any:
        if str(value).lower() not in self._known:
            raise UsageError(f"{self._name} is {value!r}", hint=f"it must be one of {', '.join(self._known)}")
        return str(value).lower()


class TrueGradient(Attribute):
    """Attribute that turns off mixed precision, as in version 1.2.1, which does not combine it with the true gradient."""

    def accept(self, instance: Any, value: Any, *, alone: bool) -> Any:
        if value and alone:
            instance.use_amp = False
        return value


class PathWork(Attribute):
    """Attribute that also sets the folders below it."""

    def accept(self, instance: Any, value: Any, *, alone: bool) -> Any:
        if getattr(instance, "_workspace_created", False):
            raise UsageError("path_work cannot be changed: its folder exists already", hint="set it in __init__")
        value = os.path.normpath(value)
        for name in ("model", "log", "meta", "bug"):
            vars(instance)[f"path_{name}"] = f"{value}/{name}"
        instance.run_lock_file = f"{value}/meta/run.lock"
        instance.bug_lock_file = f"{value}/meta/bug.lock"
        return value


class Alias:
    """Second name of an attribute."""

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
