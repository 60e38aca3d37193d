"""Check logged values, and read numbers out of tensors without a synchronisation with the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.core.errors import UsageError

Numbers = dict[str, float]
_BEHIND = 64
"""Number of steps whose metrics may be on the device before the oldest is waited for."""


class MetricTypeError(UsageError, TypeError):
    """Metrics are numbers."""

    code = "metric_type"


def merge(metrics: Mapping[str, Any] | None, values: dict[str, Any]) -> dict[str, Any]:
    """Return positional and named metrics, as in `run.step({"a/b": 1}, c=2)`, as one mapping."""
    if metrics is None:
        return values
    if not isinstance(metrics, Mapping):
        raise MetricTypeError(
            f"run.step and run.evaluate take a mapping of name → number, not {_kind(metrics)}",
            hint='run.step(loss=loss) or run.step({"train/loss": loss})',
        )
    for name in metrics:
        if not isinstance(name, str):
            raise MetricTypeError(f"metric names must be strings; {name!r} is {_kind(name)}")
    return {**metrics, **values}


def plain(name: str, value: Any) -> Any:
    """Return a float or int for a value that is one number; a tensor on a device is returned detached, to be read later."""
    kind = value.__class__
    if kind is float or kind is int:
        return value
    if kind is bool or isinstance(value, str | bytes) or value is None:
        raise _refuse(name, value)
    if _one_element(value) and not _is_bool(value):
        return _read(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    raise _refuse(name, value)


def plain_or_text(name: str, value: Any) -> Any:
    """Return a plain number as `plain` does, or a string (run.evaluate accepts both)."""
    return str(value) if isinstance(value, str) else plain(name, value)


def is_waiting(value: Any) -> bool:
    """Check whether the number is still on a device."""
    return value.__class__ is not float and value.__class__ is not int and not isinstance(value, str)


def now(value: Any) -> Any:
    """Return the number; wait for the device if necessary."""
    return value.item() if is_waiting(value) else value


class Behind:
    """Queue of metrics being copied from the device: no synchronisation, written in order once they have arrived."""

    def __init__(self, write: Callable[[int, Numbers, float], None]):
        self._write = write
        self.queue: deque[tuple[int, dict[str, Any], float, Any]] = deque()
        """Steps that are not written yet. Every Run.step checks it."""

    def put(self, step: int, values: dict[str, Any], at: float) -> None:
        copies, event = _copy_later(values)
        self.queue.append((step, copies, at, event))

    def write_arrived(self, everything: bool = False) -> None:
        """Write the metrics that have arrived; with `everything`, wait for the rest."""
        queue = self.queue
        while queue:
            step, values, at, event = queue[0]
            if event is not None and not event.query():
                if not everything and len(queue) <= _BEHIND:
                    return
                event.synchronize()
            queue.popleft()
            self._write(step, {k: now(v) for k, v in values.items()}, at)


class Later:
    """Numbers on devices that are being copied: reading them waits for these copies, not for work that is queued later."""

    def __init__(self, tensors: Sequence[Any]):
        self._copies, self._event = _copy_later({str(number): tensor for number, tensor in enumerate(tensors)})

    def read(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        return [float(now(value)) for value in self._copies.values()]


class _Events:
    """Events on several devices as one."""

    def __init__(self, events: list[Any]):
        self._events = events

    def query(self) -> bool:
        return all(event.query() for event in self._events)

    def synchronize(self) -> None:
        for event in self._events:
            event.synchronize()


class Mean:
    """Weighted mean of each metric over the iterations of one global step."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Any, float]] = {}

    def add(self, values: Mapping[str, Any], weight: float) -> None:
        for name, value in values.items():
            total, weights = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (total + value * weight, weights + weight)

    def pop(self) -> dict[str, Any]:
        means = {k: total / weights for k, (total, weights) in self._sums.items() if weights > 0}
        self._sums.clear()
        return means


def _one_element(value: Any) -> bool:
    """Check for a tensor or array without dimensions, or a numpy scalar."""
    return getattr(value, "shape", None) == () and hasattr(value, "item")


def _is_bool(value: Any) -> bool:
    return "bool" in str(getattr(value, "dtype", ""))


def _read(value: Any) -> Any:
    device = getattr(value, "device", None)
    if getattr(device, "type", "cpu") != "cpu" and hasattr(value, "detach"):
        return value.detach()
    return value.item()


def _copy_later(values: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Start copies to the host. Return them and the event after which they are complete (None: they are complete)."""
    import torch

    devices = list(dict.fromkeys(v.device for v in values.values() if is_waiting(v)))
    modules = [getattr(torch, device.type, None) for device in devices]
    if not devices or not all(hasattr(module, "Event") for module in modules):
        return {k: now(v) for k, v in values.items()}, None
    copies = {}
    for name, value in values.items():
        if is_waiting(value):
            host = torch.empty((), dtype=value.dtype, pin_memory=True)
            copies[name] = host.copy_(value, non_blocking=True)
        else:
            copies[name] = value
    events = []
    for device, module in zip(devices, modules, strict=True):
        events.append(module.Event())  # type: ignore[union-attr]
        # Each copy is in the stream of its number's own device.
        events[-1].record(*([module.current_stream(device)] if hasattr(module, "current_stream") else []))  # type: ignore[union-attr]
    return copies, _Events(events)


def _refuse(name: str, value: Any) -> MetricTypeError:
    kind = _kind(value)
    shape = getattr(value, "shape", None)
    if shape is not None and shape != ():
        hint = f"it has {'x'.join(map(str, shape))} values: log its .mean(), or use run.log_table or run.log_image"
    elif isinstance(value, bool) or _is_bool(value):
        hint = f"use int({name}) to log it as 0 or 1"
    elif isinstance(value, str):
        hint = "log text with run.evaluate or shoal.init(config=…)"
    else:
        hint = "metrics are ints, floats, 0-dim tensors and numpy scalars"
    return MetricTypeError(f"metric {name!r} must be a number, not {kind}; {hint}")


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
