"""Convert nests of tensors (arguments, outputs, states) to a picklable shape and a list of tensors, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """Place of tensor number `index` in a nest."""

    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class Branch:
    """Container in a nest: its class, its keys (None for lists and tuples) and its items."""

    kind: type
    keys: tuple[Any, ...] | None
    items: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Meta:
    """Description of a tensor, enough to allocate one like it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Meta:
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)

    def empty(self, device: torch.device) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def flatten(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return the shape of `value` and append its tensors to `tensors`, in order."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Slot(len(tensors) - 1)
    if isinstance(value, Mapping):
        return Branch(type(value), tuple(value), tuple(flatten(item, tensors) for item in value.values()))
    if isinstance(value, list | tuple):
        return Branch(type(value), None, tuple(flatten(item, tensors) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value) if field.init)
        return Branch(type(value), names, tuple(flatten(getattr(value, name), tensors) for name in names))
    return value


def put_together(shape: Any, tensors: list[Any]) -> Any:
    """Return the nest of a shape, with `tensors` in its places."""
    if isinstance(shape, Slot):
        return tensors[shape.index]
    if not isinstance(shape, Branch):
        return shape
    items = [put_together(item, tensors) for item in shape.items]
    if shape.keys is not None:
        named = dict(zip(shape.keys, items, strict=True))
        # Hugging Face's outputs are both mappings and dataclasses, and need keyword arguments.
        return shape.kind(**named) if dataclasses.is_dataclass(shape.kind) else shape.kind(named)
    return shape.kind(*items) if hasattr(shape.kind, "_fields") else shape.kind(items)


def portable(shape: Any) -> Any:
    """Return the shape with only values that are valid in another process; others (caches, handles) become None."""
    if isinstance(shape, Branch):
        return Branch(shape.kind, shape.keys, tuple(portable(item) for item in shape.items))
    return shape if isinstance(shape, Slot | bool | int | float | complex | str | bytes | torch.dtype) else None


def outline(shape: Any) -> Any:
    """Return an outline whose repr can be compared between processes: it contains no memory addresses."""
    if isinstance(shape, Branch):
        return (shape.kind.__name__, shape.keys, tuple(outline(item) for item in shape.items))
    if isinstance(shape, Slot | bool | int | float | str) or shape is None:
        return shape
    return type(shape).__name__
