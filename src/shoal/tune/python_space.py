"""Search spaces given in Python: names with lists, Ranges or texts like "1e-5:1e-2:log", or Params that hold Ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from shoal.core.errors import UsageError
from shoal.core.sweeps import Axis, Between, Choice, Params
from shoal.tune.space import read_axis

_HINT = 'for example {"lr": "1e-5:1e-2:log", "hidden": [64, 128]}'


class Column(NamedTuple):
    values: list[Any]
    group: str | None


class Space:
    """Search space of `shoal.sweep`, and the conversion of its values to the argument of a function."""

    def __init__(self, given: Any):
        self._params = given() if isinstance(given, type) else given
        self._is_params = hasattr(self._params, "ranges") and hasattr(self._params, "variants")
        found = self._params.ranges if self._is_params else given
        if not isinstance(found, Mapping) or not found:
            what = (
                f"{type(self._params).__name__} has no Range" if self._is_params else f"{given!r} is not a search space"
            )
            raise UsageError(f"{what}: there are no values to try", hint=_HINT)
        self.columns = {str(name): _column(str(name), values) for name, values in found.items()}

    def as_json(self) -> dict[str, Axis]:
        """Return the space for a server. Params that differ from their class defaults are included, with one value."""
        columns = self.columns
        if self._is_params:
            plain, usual = self._params.to_dict(), type(self._params)().to_dict()
            fixed = {n: Column([v], None) for n, v in plain.items() if n not in columns and v != usual[n]}
            columns = {**columns, **fixed}
        return {name: _axis(name, column) for name, column in columns.items()}

    def by_index(self) -> dict[str, Axis]:
        """Return the space with choices replaced by their indices, so that values may be any objects; see `values`."""
        return {
            name: column
            if isinstance(column, Between)
            else Choice(values=list(range(len(column.values))), group=column.group)
            for name, column in self.columns.items()
        }

    def values(self, found: Params) -> dict[str, Any]:
        """Return the values for parameters that were found by index."""
        return {name: _value(self.columns[name], one) for name, one in found.items()}

    @property
    def make(self) -> Callable[[dict[str, Any]], Any]:
        """Function from values to the argument of the user's function: Params if the space was Params, else a dict."""
        return (lambda values: self._params.replace(**values)) if self._is_params else dict


def _column(name: str, given: Any) -> Column | Between:
    if isinstance(given, Between):
        return given
    if hasattr(given, "values") and hasattr(given, "group"):
        return Column(list(given.values), given.group)
    if isinstance(given, Iterable) and not isinstance(given, str | Mapping):
        values = given.tolist() if hasattr(given, "tolist") else list(given)  # of numpy or torch
        if not values:
            raise UsageError(f"{name} has no values to try", hint=_HINT)
        return Column(values, None)
    axis = read_axis(name, given)
    return axis if isinstance(axis, Between) else Column(list(axis.values), axis.group)


def _axis(name: str, column: Column | Between) -> Axis:
    if isinstance(column, Between):
        return column
    try:
        return Choice(values=[list(v) if isinstance(v, tuple) else v for v in column.values], group=column.group)
    except ValidationError:
        raise UsageError(
            f"{name} has values that cannot be sent to a server", hint="use numbers, strings, True or False"
        ) from None


def _value(column: Column | Between, found: Any) -> Any:
    return found if isinstance(column, Between) else column.values[found]
