"""Check of values against type annotations, for those common in parameters. Unknown annotations accept every value."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from typing import Any, Literal, Union, get_args, get_origin


def fits(value: Any, hint: Any) -> bool:
    """Check whether a value matches an annotation. An int is accepted as float; a bool is not a number."""
    if hint is Any:
        return True
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, a) for a in args)
    if origin is Literal:
        return any(value == a and type(value) is type(a) for a in args)
    if origin is tuple:
        return isinstance(value, tuple) and _fits_tuple(value, args)
    if isinstance(origin, type):
        return isinstance(value, origin) and _fits_items(value, args)
    if hint is None or hint is type(None):
        return value is None
    if not isinstance(hint, type):
        return True
    if isinstance(value, bool):
        return hint in (bool, object)
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint)


def name_of(hint: Any) -> str:
    """Return a readable name of an annotation."""
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def _fits_tuple(value: tuple[Any, ...], args: tuple[Any, ...]) -> bool:
    if len(args) == 2 and args[1] is Ellipsis:
        return all(fits(v, args[0]) for v in value)
    return len(value) == len(args) and all(fits(v, a) for v, a in zip(value, args, strict=True))


def _fits_items(value: Any, args: tuple[Any, ...]) -> bool:
    if isinstance(value, Mapping) and len(args) == 2:
        return all(fits(k, args[0]) and fits(v, args[1]) for k, v in value.items())
    if isinstance(value, Collection) and len(args) == 1:
        return all(fits(v, args[0]) for v in value)
    return True
