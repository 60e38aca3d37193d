"""What may be logged, and how numbers are read out of tensors without making the device wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from shoal.core.errors import UsageError

Numbers = dict[str, float]
_BEHIND = 64
"""Steps that may wait for the device before one is waited for."""


class MetricTypeError(UsageError, TypeError):
    """Metrics are numbers."""

    code = "metric_type"


def merge(metrics: Mapping[str, Any] | None, values: dict[str, Any]) -> dict[str, Any]:
    """One mapping of `run.step({"a/b": 1}, c=2)`."""
    if metrics is None:
        return values
    if not isinstance(metrics, Mapping):
        raise MetricTypeError(
            f"run.step and run.evaluate take a mapping of name → number, not {_kind(metrics)}",
            hint='run.step(loss=loss) or run.step({"train/loss": loss})',
        )
    for name in metrics:
        if not isinstance(name, str):
            raise MetricTypeError(f"metric names are text; {name!r} is {_kind(name)}")
    return {**metrics, **values}


def plain(name: str, value: Any) -> Any:
    """A float or int for anything that is one number; a tensor still on a device stays as it is, detached."""
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
    """For run.evaluate, which takes strings too."""
    return str(value) if isinstance(value, str) else plain(name, value)


def is_waiting(value: Any) -> bool:
    """Whether the number is still on a device."""
    return value.__class__ is not float and value.__class__ is not int and not isinstance(value, str)


def now(value: Any) -> Any:
    """The number, waiting for the device if need be."""
    return value.item() if is_waiting(value) else value


class Behind:
    """Numbers on their way from the device: copied without a sync, read when they have arrived, in order."""

    def __init__(self, write: Callable[[int, Numbers, float], None]):
        self._write = write
        self.queue: deque[tuple[int, dict[str, Any], float, Any]] = deque()
        """Steps not written yet; looked at by every step."""

    def put(self, step: int, values: dict[str, Any], at: float) -> None:
        copies, event = _copy_later(values)
        self.queue.append((step, copies, at, event))

    def take(self, everything: bool = False) -> None:
        """Write what has arrived; `everything` waits for the rest."""
        queue = self.queue
        while queue:
            step, values, at, event = queue[0]
            if event is not None and not event.query():
                if not everything and len(queue) <= _BEHIND:
                    return
                event.synchronize()
            queue.popleft()
            self._write(step, {k: now(v) for k, v in values.items()}, at)


class Mean:
    """Weighted mean of each metric over the iterations of one global step."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Any, float]] = {}

    def add(self, values: Mapping[str, Any], weight: float) -> None:
        for name, value in values.items():
            total, weights = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (total + value * weight, weights + weight)

    def take(self) -> dict[str, Any]:
        means = {k: total / weights for k, (total, weights) in self._sums.items() if weights > 0}
        self._sums.clear()
        return means


def _one_element(value: Any) -> bool:
    """Tensors and arrays of no dimensions, and numpy scalars."""
    return getattr(value, "shape", None) == () and hasattr(value, "item")


def _is_bool(value: Any) -> bool:
    return "bool" in str(getattr(value, "dtype", ""))


def _read(value: Any) -> Any:
    device = getattr(value, "device", None)
    if getattr(device, "type", "cpu") != "cpu" and hasattr(value, "detach"):
        return value.detach()
    return value.item()


def _copy_later(values: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Copies under way to the host, and the event after which they are there (None: they are)."""
    import torch

    device = next((v.device for v in values.values() if is_waiting(v)), None)
    make_event = getattr(getattr(torch, getattr(device, "type", ""), None), "Event", None)
    if make_event is None:
        return {k: now(v) for k, v in values.items()}, None
    copies = {}
    for name, value in values.items():
        if is_waiting(value):
            host = torch.empty((), dtype=value.dtype, pin_memory=True)
            copies[name] = host.copy_(value, non_blocking=True)
        else:
            copies[name] = value
    event = make_event()
    event.record()
    return copies, event


def _refuse(name: str, value: Any) -> MetricTypeError:
    kind = _kind(value)
    shape = getattr(value, "shape", None)
    if shape is not None and shape != ():
        hint = f"it has {'x'.join(map(str, shape))} values: log its .mean(), or use run.log_table or run.log_image"
    elif isinstance(value, bool) or _is_bool(value):
        hint = f"log int({name}) if 0 and 1 are meant"
    elif isinstance(value, str):
        hint = "text goes into run.evaluate or shoal.init(config=…)"
    else:
        hint = "metrics are ints, floats, 0-dim tensors and numpy scalars"
    return MetricTypeError(f"metric {name!r} must be a number, not {kind}; {hint}")


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
