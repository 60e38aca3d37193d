"""Engines added by an admin: kept in the database, opened again at every start, used at once."""

from __future__ import annotations

import os

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.engines import EngineAdd, EngineView, SlurmOptions
from shoal.core.errors import NameTaken, NotAllowedNow, NotFound, Refused, UsageError
from shoal.core.names import did_you_mean
from shoal.core.schema import utcnow
from shoal.core.states import AttemptState
from shoal.engines.slurm.engine import SlurmEngine
from shoal.engines.slurm.site import Site
from shoal.server.context import Context
from shoal.server.models.engines import EngineRow
from shoal.server.models.jobs import Attempt, Job, Node

_SETTINGS = ("SHOAL_SANDBOX", "SHOAL_LOG_LEVEL")
"""Of the server's environment, for agents too."""


def open_all(ctx: Context) -> None:
    """At start-up. One that is in trouble is opened too: it may get well, and its agents may still run."""
    with ctx.db.read() as session:
        rows = list(session.scalars(select(EngineRow).order_by(EngineRow.name)))
    for row in rows:
        engine = _open(ctx, row.name, SlurmOptions.model_validate(row.options))
        engine.look()
        ctx.engine.add(row.name, engine)


def add(ctx: Context, body: EngineAdd) -> EngineView:
    """Try it out, then keep it. Nothing is kept of one that cannot work."""
    with ctx.db.read() as session:
        if session.get(EngineRow, body.name) is not None:
            raise NameTaken(
                f"There is an engine '{body.name}' already.", hint=f"shoal engine add {body.kind} --name ANOTHER"
            )
    if body.slurm.login and not body.slurm.home:
        raise UsageError(
            "With --login, a directory on the cluster's shared file system is needed.",
            hint=f"shoal engine add slurm --login {body.slurm.login} --home /shared/shoal --python /shared/venv/bin/python",
        )
    engine = _open(ctx, body.name, body.slurm)
    if problems := engine.check():
        raise Refused(
            f"Engine '{body.name}' cannot be used: {'; '.join(problems)}",
            hint="shoal engine add slurm --help",
            details={"problems": problems},
        )
    row = EngineRow(name=body.name, kind=body.kind, options=body.slurm.model_dump(mode="json"), created_at=utcnow())
    ctx.db.write(lambda session: session.add(row))
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
    """Look for problems now, rather than when a job meets them."""
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
                f"Job '{job}' runs on engine '{name}', or waits there.", hint=f"shoal training stop {job} --wait"
            )
        session.delete(row)

    ctx.db.write(work, essential=True)
    ctx.engine.remove(name)
    ctx.live.scheduler.set()


def _open(ctx: Context, name: str, options: SlurmOptions) -> SlurmEngine:
    return SlurmEngine(
        name,
        options,
        home=options.home or str(ctx.layout.root / "engines" / name),
        site=Site(options.login, key=options.key, ssh_dir=ctx.layout.server_dir / "ssh"),
        agent_env={"SHOAL_LOG_RATE_KB_S": str(ctx.settings.log_rate_kb_s)}
        | {name: os.environ[name] for name in _SETTINGS if name in os.environ},
        url_for=lambda address: ctx.pool.url_for(address),
    )


def _live(ctx: Context, name: str) -> SlurmEngine:
    engine = ctx.engine.get(name)
    if not isinstance(engine, SlurmEngine):
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
    return EngineView(
        name=row.name,
        kind=row.kind,
        slurm=SlurmOptions.model_validate(row.options),
        created_at=row.created_at,
        machines=len(machines),
        slots=sum(machine.slots for machine in machines if machine.state == "up"),
        problems=engine.probe() if engine else ["it is not open"],
    )
