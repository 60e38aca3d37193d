"""`shoal training stacks`: Python stacks of the workers of a running job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.shared.format import clean
from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect

if TYPE_CHECKING:
    from shoal.core.stacks import StackGroup, StacksView


def stacks(name: str, /) -> None:
    """Show the current Python stack of every worker of a running job. The job continues.

    Workers at the same place are grouped, with the stack of the first one.

    For example:

      shoal training stacks hello
      shoal training stacks hello --json

    Parameters
    ----------
    name
        The job's name or id.
    """
    with connect() as client:
        found = client.jobs.stacks(name)
    out.show(found, lambda: _print(found))


def _print(found: StacksView) -> None:
    for group in found.groups:
        out.styled((f"{_names(group)} {clean(group.where)}", "bold"))
        for frame in group.frames:
            out.line(f"    {clean(frame)}")
    if not found.complete:
        out.warn("Some nodes did not answer.")


def _names(group: StackGroup) -> str:
    return f"rank{'s' if len(group.ranks) > 1 else ''} {', '.join(map(str, group.ranks))}"
