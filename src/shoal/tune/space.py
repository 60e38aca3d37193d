"""Search spaces: parsing of typed parameters, and the combinations of a grid in order.

lr=5e-4,7e-4        these values
hidden=100:300      integers in this range
lr=1e-5:1e-2:log    numbers in this range, on a logarithmic scale
a@g=1,2  b@g=3,4    values paired by group g: 1 with 3, 2 with 4
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue, ValidationError

from shoal.core.errors import UsageError
from shoal.core.param_grid import Column, axes
from shoal.core.sweeps import Axis, Between, Choice, Params

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_HINT = "for example --param lr=1e-4,3e-4 or --param lr=1e-5:1e-2:log or --param hidden=64:512"


def read_param(text: str) -> tuple[str, Axis]:
    """Parse NAME=VALUES or NAME@GROUP=VALUES."""
    called, equals, values = text.partition("=")
    name, at, group = (part.strip() for part in called.partition("@"))
    if not equals or not _NAME.fullmatch(name) or not values.strip() or (at and not _NAME.fullmatch(group)):
        raise UsageError(f"{text!r} is not NAME=VALUES", hint=_HINT)
    axis = read_axis(name, values.strip())
    if not at:
        return name, axis
    if isinstance(axis, Between):
        raise UsageError(f"{name} is in group {group!r} and needs single values", hint=f"--param {name}@{group}=1,2,3")
    return name, axis.model_copy(update={"group": group})


def read_axis(name: str, given: Any) -> Axis:
    """Return the values of one parameter: from typed text, or from a file as a list, a number or {low, high, log}."""
    try:
        if isinstance(given, Mapping):
            return Between(**given) if "low" in given else Choice(**given)
        if isinstance(given, str):
            parts = given.split(":")
            numbers = [_number(p) for p in parts[:2]]
            if len(parts) in (2, 3) and None not in numbers and parts[2:] in ([], ["log"], ["linear"]):
                return _between(parts)
            return Choice(values=[_value(v) for v in _split(given)])
        return Choice(values=list(given) if isinstance(given, Sequence) else [given])
    except ValidationError as error:
        raise UsageError(f"{name}: {error.errors()[0]['msg'].removeprefix('Value error, ')}", hint=_HINT) from None
    except TypeError as error:
        raise UsageError(f"{name}: {error}", hint=_HINT) from None


def param_text(name: str, axis: Axis) -> str:
    """Return NAME=VALUES, which `read_param` parses to the same axis."""
    if isinstance(axis, Between):
        ends = [str(int(end)) if axis.whole else repr(end) for end in (axis.low, axis.high)]
        return f"{name}={':'.join([*ends, *(['log'] if axis.log else [])])}"
    called = name if axis.group is None else f"{name}@{axis.group}"
    return f"{called}={','.join(map(_text, axis.values))}"


def grid(space: Mapping[str, Axis]) -> Iterator[Params]:
    """Yield every combination: the first parameter changes slowest, groups change fastest."""
    for at in range(grid_size(space)):
        yield grid_point(space, at)


def grid_size(space: Mapping[str, Axis]) -> int:
    return math.prod(len(axis) for axis in _axes(space))


def grid_point(space: Mapping[str, Axis], at: int) -> Params:
    """Return the combination of that number, without computing those before it."""
    chosen: list[Params] = []
    for axis in reversed(_axes(space)):
        at, index = divmod(at, len(axis))
        chosen.append(axis[index])
    found = dict(itertools.chain.from_iterable(part.items() for part in reversed(chosen)))
    return {name: found[name] for name in space}


def arguments(params: Params) -> list[str]:
    """Return the parameters as a script's arguments: --name value. True gives the flag only, False and None give nothing."""
    found: list[str] = []
    for name, value in params.items():
        if value is True:
            found.append(f"--{name}")
        elif value is not False and value is not None:
            found += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return found


def _axes(space: Mapping[str, Axis]) -> list[list[Params]]:
    columns: list[Column] = []
    for name, axis in space.items():
        if isinstance(axis, Between):
            raise UsageError(f"{name} is a range, which has no fixed number of values")
        columns.append((name, axis.values, axis.group))
    return axes(columns)


def _between(parts: list[str]) -> Between:
    whole = all(re.fullmatch(r"[+-]?\d+", p.strip()) for p in parts[:2])
    return Between(low=float(parts[0]), high=float(parts[1]), log=parts[2:] == ["log"], whole=whole)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _value(text: str) -> JsonValue:
    """Return a JSON value if the text is one (5, 1e-3, true, [3,4]), else the text."""
    text = text.strip()
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        number = _number(text)
        return number if number is not None and math.isfinite(number) else text
    return value


def _text(value: JsonValue) -> str:
    """Return a value as typed text, quoted only where it would be parsed as something else."""
    if isinstance(value, str) and value and _split(value) == [value] and _value(value) == value and ":" not in value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _split(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for at, letter in enumerate(text):
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quoted:
            parts.append(text[start:at])
            start = at + 1
    return [p for p in [*parts, text[start:]] if p.strip()]
