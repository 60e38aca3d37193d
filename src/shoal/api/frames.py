"""Data frames of what the server has. pandas is imported when one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from shoal.core.errors import MissingExtra

if TYPE_CHECKING:
    import pandas


class HasFacts(Protocol):
    """Object that is a row of a table."""

    def facts(self) -> dict[str, Any]:
        """Return column → value."""


T = TypeVar("T", bound=HasFacts)


class Table(list[T]):
    """List of objects of the server, made by `Workspace.jobs` and others, which can also be had as a data frame."""

    def frame(self) -> pandas.DataFrame:
        """Return one row per object.

        Returns:
            A pandas data frame with the main facts of each object.

        Example:
            >>> space.jobs().frame()[["name", "status"]]
        """
        return frame(one.facts() for one in self)


def frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pandas.DataFrame:
    """Return a pandas data frame; raise MissingExtra without pandas."""
    try:
        import pandas
    except ImportError:
        raise MissingExtra("Data frames need pandas, which is not installed.", hint="pip install pandas") from None
    return pandas.DataFrame(list(rows), columns=columns)
