"""Results of a query over the jobs of a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shoal.api.frames import frame
from shoal.api.jobs import Job

if TYPE_CHECKING:
    import pandas

    from shoal.client import Client
    from shoal.core.runs import RunRow, RunsPage


class Runs:
    """Runs that a query matches, newest first or sorted as asked; made by `Workspace.runs`. Iterating yields `Job` objects."""

    def __init__(self, client: Client, page: RunsPage):
        self._client, self.page = client, page

    @property
    def total(self) -> int:
        """Number of all matching runs; `page` holds at most as many as the query's limit."""
        return self.page.total

    def frame(self) -> pandas.DataFrame:
        """Return one row per run: its facts, and the columns that were asked for.

        Returns:
            A pandas data frame.

        Example:
            >>> runs = space.runs("tag:ablation", columns=["lr", "loss.min"])
            >>> runs.frame().sort_values("loss.min").head()
        """
        facts = ["name", "status", "user", "tags", "created_at", "duration_s"]
        return frame((_row(one) for one in self.page.rows), [*facts, *self.page.columns])

    def __iter__(self) -> Iterator[Job]:
        for one in self.page.rows:
            yield Job(self._client, one.id)

    def __len__(self) -> int:
        return len(self.page.rows)

    def __repr__(self) -> str:
        return f"Runs({len(self)} of {self.total}: {', '.join(one.name for one in self.page.rows[:5])})"


def _row(one: RunRow) -> dict[str, Any]:
    facts = {"name": one.name, "status": str(one.status), "user": one.user, "tags": one.tags}
    return {**facts, "created_at": one.created_at, "duration_s": one.duration_s, **one.values}
