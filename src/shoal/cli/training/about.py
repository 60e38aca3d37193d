"""`shoal training tag`, `note`, `notes`, `title`, `star` and `archive`: what people write about jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shoal.cli.shared.bulk import demand
from shoal.cli.shared.format import clean
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.session import connect
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.core.charts import StepNoteView

Repeatable = Annotated[list[str] | None, Parameter(consume_multiple=False)]


def tag(*jobs: str, add: Repeatable = None, remove: Repeatable = None) -> None:
    """Add tags to jobs, or remove them.

    For example:

      shoal training tag hello --add ablation --add wide
      shoal training tag hello other --remove wide

    Parameters
    ----------
    jobs
        Names or ids of jobs.
    add
        Tag to add (repeatable).
    remove
        Tag to remove (repeatable).
    """
    if not add and not remove:
        raise UsageError("No tag is given.", hint="shoal training tag JOB --add TAG")
    _change(jobs, add_tags=add or [], remove_tags=remove or [])


def note(job: str, text: str, /, *, step: int | None = None) -> None:
    """Write a note about a job; it replaces the earlier note.

    With --step, the note is shown at that step of the job's curves, beside
    those that are there already.

    For example:

      shoal training note hello "diverges after step 900; try a longer warm-up"
      shoal training note hello "warm-up ends" --step 500
      shoal training notes hello

    Parameters
    ----------
    job
        The job's name or id.
    text
        The note; an empty text removes it.
    step
        Step at which the note is shown on the curves.
    """
    if step is None:
        return _change((job,), note=text)
    if not text.strip():
        raise UsageError("A note at a step needs a text.", hint=f"{out.prog} training notes {job} --delete NUMBER")
    with connect() as client:
        client.runs.add_note(job, step, text)
        return _show_notes(client.runs.notes(job), job)


def notes(job: str, /, *, delete: Annotated[list[int] | None, Parameter(consume_multiple=False)] = None) -> None:
    """List the notes at steps of a job, or delete some of them.

    For example:

      shoal training notes hello
      shoal training notes hello --delete 3
      shoal training note hello "warm-up ends" --step 500

    Parameters
    ----------
    job
        The job's name or id.
    delete
        Number of a note to delete (repeatable).
    """
    with connect() as client:
        for number in delete or []:
            client.runs.delete_note(job, number)
        _show_notes(client.runs.notes(job), job)


def _show_notes(found: list[StepNoteView], job: str) -> None:
    columns = [
        Column("NUMBER", lambda n: n.id),
        Column("STEP", lambda n: n.step, is_right=True),
        Column("NOTE", lambda n: clean(n.text)),
        Column("BY", lambda n: clean(n.created_by), rank=2),
        Column("WRITTEN", lambda n: n.created_at, rank=3),
    ]
    empty = f"No notes at steps of {job}. Write one: {out.prog} training note {job} TEXT --step 500"
    out.show(found, lambda: out.table(found, columns, empty=empty))


def title(job: str, text: str, /, *, description: str | None = None) -> None:
    """Give a job a title that is shown instead of its name. The name itself stays.

    For example:

      shoal training title hello "Baseline, cosine schedule"
      shoal training title hello "Baseline" --description "Reference for all ablations."

    Parameters
    ----------
    job
        The job's name or id.
    text
        The title; an empty text removes it.
    description
        Longer description of the job.
    """
    _change((job,), title=text, description=description)


def star(*jobs: str, remove: bool = False) -> None:
    """Mark jobs with a star, for all members of the workspace.

    For example:

      shoal training star hello
      shoal training star hello --remove

    Parameters
    ----------
    jobs
        Names or ids of jobs.
    remove
        Remove the star.
    """
    _change(jobs, starred=not remove)


def archive(*jobs: str, undo: bool = False) -> None:
    """Hide jobs from the table of runs. Nothing is deleted.

    For example:

      shoal training archive hello
      shoal training archive hello --undo

    Parameters
    ----------
    jobs
        Names or ids of jobs.
    undo
        Show the jobs again.
    """
    _change(jobs, archived=not undo)


def _change(jobs: tuple[str, ...], **fields: Any) -> None:
    from shoal.core.runs import RunChange

    demand(jobs, "job")
    try:
        request = RunChange(jobs=list(jobs), **fields)
    except ValueError as error:
        raise UsageError(_first(error)) from None
    with connect() as client:
        changed = client.runs.change(request)
    columns = [
        Column("NAME", lambda r: clean(r.name)),
        Column("TITLE", lambda r: clean(r.title)),
        Column("TAGS", lambda r: " ".join(map(clean, r.tags))),
        Column("STAR", lambda r: "yes" if r.starred else "no"),
        Column("ARCHIVED", lambda r: "yes" if r.archived else "no"),
        Column("NOTE", lambda r: clean(r.note), rank=1),
    ]
    out.show(changed, lambda: out.table(changed, columns, empty=""))


def _first(error: ValueError) -> str:
    found: list[Any] = getattr(error, "errors", list)()
    text = str(found[0]["msg"]).removeprefix("Value error, ") if found else str(error)
    return f"{text[:1].upper()}{text[1:]}."
