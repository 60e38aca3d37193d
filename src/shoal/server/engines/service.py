"""Engines added by an admin: stored in the database, opened at every start of the server, used as soon as they are added."""

from __future__ import annotations

import logging

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.engines import EngineAdd, EngineView
from shoal.core.errors import InvalidSpec, NameTaken, NotAllowedNow, NotFound, Refused
from shoal.core.names import did_you_mean
from shoal.core.schema import Schema, utcnow
from shoal.core.settings import ServerSettings
from shoal.core.states import AttemptState
from shoal.engines.base import Engine
from shoal.engines.kinds import AddedKind, EngineHost, added_kind, reserved_names
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.engines import EngineRow
from shoal.server.models.jobs import Attempt, Job, Node

logger = logging.getLogger(__name__)


def open_all(ctx: Context) -> None:
    """Open all stored engines at start-up. A failing engine is opened too: it may recover, and its agents may still run.

    One whose kind is no longer installed stays closed; its view says so.
    """
    with ctx.db.read() as session:
        rows = list(session.scalars(select(EngineRow).order_by(EngineRow.name)))
    for row in rows:
        try:
            kind = added_kind(row.kind)
            engine = kind.open(row.name, kind.options.model_validate(row.options), host(ctx))
        except (NotFound, ValidationError) as error:
            logger.error("engine %s is not open: %s", row.name, error)
            continue
        engine.prepare()
        ctx.engine.add(row.name, engine)


def host(ctx: Context) -> EngineHost:
    """Return this server as engines see it."""
    return EngineHost(
        layout=ctx.layout,
        settings=ctx.settings,
        url_for=lambda address: ctx.pool.url_for(address),
        agent_env=agent_env(ctx.settings),
    )


def agent_env(settings: ServerSettings) -> dict[str, str]:
    """Return the variables that agents of all engines need."""
    return {"SHOAL_LOG_RATE_KB_S": str(settings.log_rate_kb_s)}


def add(ctx: Context, body: EngineAdd) -> EngineView:
    """Check an engine, then store and open it. Nothing is stored if the check finds problems."""
    kind = added_kind(body.kind)
    if body.name in reserved_names():
        raise InvalidSpec(f"'{body.name}' is the name of a built-in engine.", hint="--name ANOTHER")
    with ctx.db.read() as session:
        if session.get(EngineRow, body.name) is not None:
            raise NameTaken(
                f"There is an engine '{body.name}' already.", hint=f"shoal engine add {body.kind} --name ANOTHER"
            )
    options = _options(kind, body)
    kind.check_options(options)
    engine = kind.open(body.name, options, host(ctx))
    if problems := engine.check():
        raise Refused(
            f"Engine '{body.name}' cannot be used: {'; '.join(problems)}",
            hint=f"shoal engine add {body.kind} --help",
            details={"problems": problems},
        )
    row = EngineRow(name=body.name, kind=body.kind, options=options.model_dump(mode="json"), created_at=utcnow())

    def work(session: Session) -> None:
        session.add(row)
        record_action(session, AuditAction.ENGINE_ADD, body.name, detail=body.kind)

    ctx.db.write(work)
    ctx.engine.add(body.name, engine)
    ctx.live.scheduler.set()
    return get(ctx, body.name)


def list_engines(ctx: Context) -> list[EngineView]:
    with ctx.db.read() as session:
        return [_view(ctx, row) for row in session.scalars(select(EngineRow).order_by(EngineRow.name))]


def get(ctx: Context, name: str) -> EngineView:
    with ctx.db.read() as session:
        return _view(ctx, _find(session, name))


def check(ctx: Context, name: str) -> EngineView:
    """Check an engine for problems now, before a job fails because of them."""
    with ctx.db.read() as session:
        row = _find(session, name)
    problems = _live(ctx, name).check()
    return _view(ctx, row).model_copy(update={"problems": problems})


def remove(ctx: Context, name: str) -> None:
    def work(session: Session) -> None:
        row = _find(session, name)
        using = (
            select(Job.name)
            .join(Attempt, Attempt.job_id == Job.id)
            .join(Node, Node.attempt_id == Attempt.id)
            .where(Attempt.state != AttemptState.ENDED.value, Node.machine.startswith(f"{name}:", autoescape=True))
        )
        if (job := session.scalar(using.limit(1))) is not None:
            raise NotAllowedNow(
                f"Job '{job}' runs or waits on engine '{name}'.", hint=f"shoal training stop {job} --wait"
            )
        session.delete(row)
        record_action(session, AuditAction.ENGINE_REMOVE, name, detail=row.kind)

    ctx.db.write(work, essential=True)
    ctx.engine.remove(name)
    ctx.live.scheduler.set()


def _options(kind: AddedKind, body: EngineAdd) -> Schema:
    """Return the checked options of a request; raise with all that is wrong."""
    try:
        return kind.options.model_validate(body.options)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()]
        raise InvalidSpec(
            f"Options of an engine of kind '{kind.name}' are not valid: {'; '.join(wrong)}.",
            hint=f"shoal engine add {kind.name} --help",
        ) from None


def _live(ctx: Context, name: str) -> Engine:
    engine = ctx.engine.get(name)
    if engine is None:
        raise NotFound(f"Engine '{name}' is not open.", hint="shoal server status")
    return engine


def _find(session: Session, name: str) -> EngineRow:
    row = session.get(EngineRow, name)
    if row is None:
        near = did_you_mean(name, session.scalars(select(EngineRow.name)))
        raise NotFound(f"There is no engine '{name}' here.{near}", hint="shoal engine list")
    return row


def _view(ctx: Context, row: EngineRow) -> EngineView:
    engine = ctx.engine.get(row.name)
    machines = engine.capacity() if engine else []
    view = {
        row.kind: row.options,  # the field of the options in 0.1; ignored for other kinds
        "name": row.name,
        "kind": row.kind,
        "options": row.options,
        "created_at": row.created_at,
        "machines": len(machines),
        "slots": sum(machine.slots for machine in machines if machine.state == "up"),
        "problems": engine.probe() if engine else _why_closed(row),
    }
    return EngineView.model_validate(view)


def _why_closed(row: EngineRow) -> list[str]:
    try:
        added_kind(row.kind)
    except NotFound as error:
        return [f"{error.message} {error.hint}"]
    return ["it is not open"]
