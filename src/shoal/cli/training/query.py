"""`shoal training query` and `views`: queries over all jobs of a workspace, and those that were saved under a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shoal.cli.shared.format import clean
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.session import connect

if TYPE_CHECKING:
    from shoal.core.runs import RunsPage

Repeatable = Annotated[list[str] | None, Parameter(consume_multiple=False)]


def query(
    text: str = "",
    /,
    *,
    sort: str = "",
    column: Repeatable = None,
    group: Repeatable = None,
    limit: int = 50,
    as_csv: Annotated[bool, Parameter(name="--csv")] = False,
    view: str | None = None,
    save: str | None = None,
) -> None:
    """Query the runs of the workspace by status, person, tags, parameters and metrics.

    Conditions are separated by spaces, and all must hold: status:failed,
    user:ada, tag:ablation, lr>1e-4, loss.min<2, age<2d, a word of the name.
    A minus in front negates a condition. Sweep trials are included with
    kind:trial or sweep:NAME.

    For example:

      shoal training query "lr>1e-4 tag:ablation loss.min<2" --sort loss.min
      shoal training query "age<7d" --column lr --column loss.min --csv
      shoal training query --group=-seed --column accuracy.max --sort=-accuracy.max
      shoal training query "tag:ablation" --column loss.min --save ablations
      shoal training query --view ablations

    Parameters
    ----------
    text
        The conditions; all runs if none are given.
    sort
        Column to sort by; with a minus in front, descending.
    column
        Parameter or metric to show (repeatable). Metrics: NAME.last, .min, .max, .step, .count.
    group
        Group runs with equal values in this column (repeatable), with mean and spread; -seed: all parameters but seed.
    limit
        Maximum number of rows (default 50).
    as_csv
        Print CSV.
    view
        Saved view to show; other options replace parts of it.
    save
        Save the query under this name, for all members of the workspace.
    """
    columns, groups = column or [], group or []
    with connect() as client:
        if view is not None:
            saved = client.runs.view(view)
            text, sort = text or saved.q, sort or saved.sort
            columns, groups = columns or saved.columns, groups or saved.group
        if save is not None:
            from shoal.core.runs import RunsViewSave

            client.runs.save_view(save, RunsViewSave(q=text, sort=sort, columns=columns, group=groups))
            out.info(f"Saved as {save}.")
        if as_csv:
            return out.write(client.runs.csv(text, sort=sort, columns=columns, group=groups))
        page = client.runs.query(text, sort=sort, columns=columns, group=groups, limit=limit)
    return out.show(page, lambda: _print_groups(page) if groups else _print_rows(page))


def views(*, delete: Repeatable = None) -> None:
    """List the saved views of the workspace's runs, or delete some of them.

    For example:

      shoal training views
      shoal training views --delete ablations
      shoal training query --view ablations

    Parameters
    ----------
    delete
        Name of a view to delete (repeatable).
    """
    with connect() as client:
        for name in delete or []:
            client.runs.delete_view(name)
        found = client.runs.views()
    columns = [
        Column("NAME", lambda v: clean(v.name)),
        Column("QUERY", lambda v: clean(v.q)),
        Column("SORT", lambda v: clean(v.sort), rank=2),
        Column("COLUMNS", lambda v: clean(" ".join(v.columns)), rank=3),
        Column("GROUPS", lambda v: clean(" ".join(v.group)), rank=3),
        Column("BY", lambda v: clean(v.created_by), rank=4),
    ]
    empty = f"No saved views yet. Save one: {out.prog} training query TEXT --save NAME"
    out.show(found, lambda: out.table(found, columns, empty=empty))


def _print_rows(page: RunsPage) -> None:
    from shoal.cli.training.spark import number

    shown = [
        Column("NAME", lambda r: f"{'* ' if r.starred else ''}{clean(r.title or r.name)}"),
        Column("STATUS", lambda r: r.status, is_status=True),
        *(Column(clean(name).upper(), _value(name, number), is_right=True) for name in page.columns),
        Column("TAGS", lambda r: " ".join(map(clean, r.tags)), rank=2),
        Column("USER", lambda r: clean(r.user), rank=3),
        Column("CREATED", lambda r: r.created_at, rank=4),
        Column("ID", lambda r: r.id, is_id=True),
    ]
    out.table(
        page.rows, shown, empty=f"No run matches. Names of columns and examples: {out.prog} training query --help"
    )
    if page.total > len(page.rows):
        out.info(f"{len(page.rows)} of {page.total} runs.")


def _print_groups(page: RunsPage) -> None:
    from shoal.cli.training.spark import number

    keys = list(dict.fromkeys(name for g in page.groups for name in g.key))
    shown = [
        *(Column(clean(name).upper(), _key(name, number)) for name in keys),
        Column("RUNS", lambda g: g.runs, is_right=True),
        *(Column(clean(name).upper(), _spread(name, number), is_right=True) for name in page.columns),
    ]
    out.table(
        page.groups, shown, empty=f"No run matches. Names of columns and examples: {out.prog} training query --help"
    )


def _value(name: str, number: Any) -> Any:
    return lambda row: _text(row.values.get(name), number)


def _key(name: str, number: Any) -> Any:
    return lambda group: _text(group.key.get(name), number)


def _text(value: Any, number: Any) -> Any:
    if value is None:
        return None
    return clean(value) if isinstance(value, str) else number(value)


def _spread(name: str, number: Any) -> Any:
    def cell(group: Any) -> str | None:
        found = group.values[name]
        if found.mean is None:
            return None
        return number(found.mean) if found.std is None else f"{number(found.mean)} ± {number(found.std)}"

    return cell
