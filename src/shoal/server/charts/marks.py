"""Marks on the curves of a run: checkpoints, restarts, resumes, preemptions, stalls, failed steps and notes."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.charts import Mark, MarkKind, NoteSave, StepNoteView
from shoal.core.errors import InvalidSpec, NotFound
from shoal.core.schema import utcnow
from shoal.server import lookup
from shoal.server.charts.step_clock import StepClock
from shoal.server.context import Context
from shoal.server.metrics import reads
from shoal.server.models.bugs import Bug
from shoal.server.models.charts import StepNote
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.jobs import Attempt, Event
from shoal.server.policy import Access

MAX_NOTES = 500
_EVENTS: dict[str, MarkKind] = {"preempted": "preempted", "stalled": "stalled"}


def list_marks(ctx: Context, access: Access, job: str) -> list[Mark]:
    """Return the marks of a run in the order of their times."""
    with ctx.db.read() as session:
        row = lookup.job(session, access, job)
        starts = reads.starts(session, row.id)
        clock = StepClock(session, row.id)
        found = [*_checkpoints(session, row.id), *_attempts(session, row.id, starts), *_bugs(session, row.id)]
        found += [
            Mark(
                kind=_EVENTS[e.kind], step=clock.step_at(e.at.timestamp(), e.attempt), at=e.at.timestamp(),
                text=e.message, attempt=e.attempt,
            )
            for e in session.scalars(select(Event).where(Event.job_id == row.id, Event.kind.in_(list(_EVENTS))))
        ]  # fmt: skip
        found += [_note(note, clock) for note in session.scalars(select(StepNote).where(StepNote.job_id == row.id))]
    return sorted(found, key=lambda mark: mark.at)


def list_notes(ctx: Context, access: Access, job: str) -> list[StepNoteView]:
    """Return the notes at steps of a run, by step."""
    with ctx.db.read() as session:
        row = lookup.job(session, access, job)
        notes = select(StepNote).where(StepNote.job_id == row.id).order_by(StepNote.step, StepNote.id)
        return [_note_view(note) for note in session.scalars(notes)]


def add_note(ctx: Context, access: Access, job: str, request: NoteSave) -> Mark:
    """Write a note at a step of a run."""

    def work(session: Session) -> Mark:
        row = lookup.job(session, access, job)
        if (session.scalar(select(func.count()).where(StepNote.job_id == row.id)) or 0) >= MAX_NOTES:
            raise InvalidSpec(f"A run can have at most {MAX_NOTES} notes at steps.")
        note = StepNote(
            job_id=row.id, step=request.step, text=request.text, created_by=access.principal.email, created_at=utcnow()
        )
        session.add(note)
        session.flush()
        return _note(note, StepClock(session, row.id))

    return ctx.db.write(work)


def change_note(ctx: Context, access: Access, job: str, note_id: int, request: NoteSave) -> StepNoteView:
    """Change the step and the text of a note; its author stays."""

    def work(session: Session) -> StepNoteView:
        note = _find_note(session, access, job, note_id)
        note.step, note.text = request.step, request.text
        return _note_view(note)

    return ctx.db.write(work)


def delete_note(ctx: Context, access: Access, job: str, note_id: int) -> None:
    """Delete a note of a run."""
    ctx.db.write(lambda session: session.delete(_find_note(session, access, job, note_id)))


def _find_note(session: Session, access: Access, job: str, note_id: int) -> StepNote:
    row = lookup.job(session, access, job)
    note = session.get(StepNote, note_id)
    if note is None or note.job_id != row.id:
        raise NotFound(f"Job '{row.name}' has no note {note_id}.", hint=f"shoal training notes {row.name}")
    return note


def _note_view(note: StepNote) -> StepNoteView:
    return StepNoteView(
        id=note.id, step=note.step, text=note.text, created_by=note.created_by, created_at=note.created_at
    )


def _note(note: StepNote, clock: StepClock) -> Mark:
    """Return a note as a mark. On an axis of times it stands where the run was at its step, not where it was written."""
    at = clock.time_of(note.step)
    text = f"{note.text} ({note.created_by})"
    return Mark(
        kind="note", step=note.step, at=note.created_at.timestamp() if at is None else at, text=text, id=note.id
    )


def _checkpoints(session: Session, job_id: str) -> list[Mark]:
    rows = session.scalars(select(Checkpoint).where(Checkpoint.job_id == job_id).order_by(Checkpoint.id))
    return [
        Mark(
            kind="checkpoint", step=row.facts.get("step"), at=row.created_at.timestamp(), text=f"checkpoint {row.name}",
            attempt=row.attempt,
        )
        for row in rows
    ]  # fmt: skip


def _attempts(session: Session, job_id: str, starts: dict[int, int]) -> list[Mark]:
    """Return the beginnings of all attempts but the first, and of the first if it resumed from something."""
    rows = list(session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number)))
    found, before = [], None
    for row in rows:
        resumed = bool(row.resume)
        if before is not None or resumed:
            name = session.scalar(select(Checkpoint.name).where(Checkpoint.id == (row.resume or {}).get("id")))
            why = f" after: {before.reason}" if before is not None and before.reason else ""
            origin = f" from checkpoint {name}" if name else " from a checkpoint" if resumed else " from the beginning"
            found.append(
                Mark(
                    kind="resume" if resumed else "restart", step=starts.get(row.number), attempt=row.number,
                    at=(row.started_at or row.created_at).timestamp(), text=f"attempt {row.number}{origin}{why}",
                )
            )  # fmt: skip
        before = row
    return found


def _bugs(session: Session, job_id: str) -> list[Mark]:
    rows = session.scalars(select(Bug).where(Bug.job_id == job_id).order_by(Bug.id))
    return [
        Mark(kind="failed", step=row.step, at=row.at.timestamp(), text=f"step failed: {row.error}", attempt=row.attempt)
        for row in rows
    ]
