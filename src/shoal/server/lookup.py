"""Lookup of a workspace's jobs, datasets and so on by name or id.

Every lookup needs an Access; other workspaces' are NotFound.
"""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from shoal.core.datasets import DatasetStatus, split_version
from shoal.core.errors import NotAllowedNow, NotFound
from shoal.core.ids import is_id
from shoal.core.names import did_you_mean
from shoal.server.models.bugs import Bug
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.datasets import Dataset
from shoal.server.models.jobs import Job
from shoal.server.models.media import Media
from shoal.server.models.sources import Source
from shoal.server.models.swarm import Swarm
from shoal.server.models.sweeps import Sweep
from shoal.server.policy import Access, AgentIdentity

Reported = TypeVar("Reported", Media, Bug)
Named = TypeVar("Named", Job, Sweep, Swarm)


def job(session: Session, access: Access, name_or_id: str) -> Job:
    return _named(session, access, Job, name_or_id, prefix="job", what="job", hint="shoal training list")


def sweep(session: Session, access: Access, name_or_id: str) -> Sweep:
    return _named(session, access, Sweep, name_or_id, prefix="swp", what="sweep", hint="shoal sweep list")


def swarm(session: Session, access: Access, name_or_id: str) -> Swarm:
    return _named(session, access, Swarm, name_or_id, prefix="swm", what="swarm", hint="shoal swarm list")


def source(session: Session, access: Access, source_id: str) -> Source:
    found = session.scalar(select(Source).where(Source.workspace_id == access.workspace_id, Source.id == source_id))
    if found is None:
        raise NotFound(f"There is no source '{source_id}' in workspace '{access.workspace}'.")
    return found


def dataset(session: Session, access: Access, reference: str, *, available: bool = True) -> Dataset:
    """Return a dataset by NAME (newest available version, else newest), NAME@VERSION or id."""
    mine = select(Dataset).where(Dataset.workspace_id == access.workspace_id)
    if is_id(reference, "ds"):
        found, name = session.scalar(mine.where(Dataset.id == reference)), reference
    else:
        name, version = split_version(reference)
        if version is not None:
            found = session.scalar(mine.where(Dataset.name == name, Dataset.version == version))
        else:
            found = newest_dataset(session, access, name) or session.scalar(
                mine.where(Dataset.name == name).order_by(Dataset.version.desc()).limit(1)
            )
    if found is None:
        names = session.scalars(select(Dataset.name).where(Dataset.workspace_id == access.workspace_id).distinct())
        raise NotFound(
            f"There is no dataset '{reference}' in workspace '{access.workspace}'.{did_you_mean(name, names)}",
            hint=f"shoal dataset push {name} --file PATH",
        )
    if available and found.status != DatasetStatus.AVAILABLE:
        raise NotAllowedNow(
            f"Dataset '{reference}' is not available yet: {found.error or found.status}.",
            hint=f"shoal dataset inspect {name}",
        )
    return found


def newest_dataset(session: Session, access: Access, name: str) -> Dataset | None:
    return session.scalar(
        select(Dataset)
        .where(
            Dataset.workspace_id == access.workspace_id,
            Dataset.name == name,
            Dataset.status == DatasetStatus.AVAILABLE.value,
        )
        .order_by(Dataset.version.desc())
        .limit(1)
    )


def of_line(session: Session, table: type[Reported], who: AgentIdentity, rank: int, line: int) -> Reported | None:
    """Return the row that a line of a rank's spool file created before, or None."""
    mine = select(table).where(
        table.job_id == who.job_id, table.attempt == who.attempt, table.node == who.node, table.rank == rank
    )
    return session.scalar(mine.where(table.n == line))


def checkpoint(session: Session, access: Access, reference: str) -> Checkpoint:
    """Return a checkpoint by id, by the name it was pushed under, or by JOB/NAME; of several with one name, the newest."""
    mine = select(Checkpoint).where(Checkpoint.workspace_id == access.workspace_id).order_by(Checkpoint.id.desc())
    if is_id(reference, "ckpt"):
        query = mine.where(Checkpoint.id == reference)
    else:
        job, _, name = reference.partition("/")
        query = mine.where(
            or_(
                (Checkpoint.name == reference) & Checkpoint.job_id.is_(None),
                (Checkpoint.job_name == job) & (Checkpoint.name == name),
            )
        )
    found = session.scalar(query.limit(1))
    if found is None:
        raise NotFound(
            f"There is no checkpoint '{reference}' in workspace '{access.workspace}'.", hint="shoal checkpoint list"
        )
    return found


def _named(
    session: Session, access: Access, table: type[Named], name_or_id: str, *, prefix: str, what: str, hint: str
) -> Named:
    column = table.id if is_id(name_or_id, prefix) else table.name
    found = session.scalar(select(table).where(table.workspace_id == access.workspace_id, column == name_or_id))
    if found is None:
        names = session.scalars(select(table.name).where(table.workspace_id == access.workspace_id).limit(1000))
        raise NotFound(
            f"There is no {what} '{name_or_id}' in workspace '{access.workspace}'.{did_you_mean(name_or_id, names)}",
            hint=hint,
        )
    return found
