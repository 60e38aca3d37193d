"""Data of the new-job page: the choices it offers, the command for a draft, and whether the job would start now."""

from __future__ import annotations

import re
from typing import Any, Literal

from sqlalchemy import select

from shoal.core.checks import Finding, Severity
from shoal.core.datasets import DatasetStatus, DatasetView
from shoal.core.errors import NotFound, ShoalError
from shoal.core.gpu_models import short_model
from shoal.core.jobs import CapacityView, JobSpec
from shoal.core.notebooks import Receipt
from shoal.core.schema import View
from shoal.server import lookup
from shoal.server.artifacts import checkpoints, code_checks, datasets
from shoal.server.context import Context
from shoal.server.git import service as git
from shoal.server.models.jobs import Job
from shoal.server.models.sweeps import Sweep
from shoal.server.notebooks import service as notebooks
from shoal.server.people import secrets
from shoal.server.policy import Access
from shoal.server.pool import machines
from shoal.server.preflight import service as preflights
from shoal.server.queue import service as queue
from shoal.server.web.command import training_command, where_to_run
from shoal.server.web.drafts.job import Draft, in_step, to_spec

_LIKELY = ("train.py", "main.py", "run.py", "finetune.py", "pretrain.py", "train.sh", "run.sh")
_MAX_SCRIPTS = 1000
_MAX_CHECKPOINTS = 100


class Code(View):
    """A source from which the script can be chosen."""

    id: str
    title: str
    origin: dict[str, Any]
    size: int
    files: int
    scripts: list[str]
    """Paths of scripts, the most likely one first."""
    notebooks: list[str]
    """Paths of notebooks. They are listed separately, because a chosen one has to be converted to a script first."""
    receipt: Receipt | None = None
    """Receipt of the conversion, if the script was made from a notebook."""
    suggested: str
    """Suggested name for the job that is not taken yet."""


class Preview(View):
    """Texts that the page shows beside a draft."""

    command: str | None
    problem: str | None
    """Why there is no command yet; None if there is one."""
    where: str = ""
    """Sentence that says where to run the command; empty if that does not matter."""
    fit: Literal["now", "later", "never"] | None
    fit_text: str
    advice: str = ""
    """Why a preflight is recommended; empty if it is not."""
    findings: list[Finding] = []
    """Findings of the code check, without hints."""


class DatasetChoice(View):
    name: str
    versions: list[int]
    """Available versions, newest first."""
    size: int


class ModelChoice(View):
    """A model of GPUs, and how many of them are free now."""

    name: str
    free: int
    total: int


def choices(ctx: Context, access: Access) -> dict[str, Any]:
    """Return everything the form offers to choose from, except code."""
    saved = [c for c in checkpoints.list_checkpoints(ctx, access, None)[::-1] if not c.damaged]
    pool = machines.capacity(ctx)
    return {
        "datasets": _datasets(datasets.list_datasets(ctx, access)),
        "secrets": [s.name for s in secrets.list_secrets(ctx, access)],
        "checkpoints": saved[:_MAX_CHECKPOINTS],
        "git_sources": git.list_git_sources(ctx, access),
        "pool": pool,
        "models": free_models(pool),
    }


def free_models(pool: CapacityView) -> list[ModelChoice]:
    """Return the models of GPUs in the pool, with how many of each are free now; drained and lost machines have none free."""
    found: dict[str, ModelChoice] = {}
    for machine in pool.machines:
        for device in machine.devices:
            if name := short_model(device.model):
                known = found.get(name) or ModelChoice(name=name, free=0, total=0)
                free = known.free + (device.is_free and machine.state == "up")
                found[name] = ModelChoice(name=name, free=free, total=known.total + 1)
    return [found[name] for name in sorted(found)]


def code(ctx: Context, access: Access, source_id: str) -> Code | None:
    """Return a source with its scripts; None if it does not exist (any more)."""
    try:
        with ctx.db.read() as session:
            row = lookup.source(session, access, source_id)
    except NotFound:
        return None
    paths = [f.path for f in ctx.store.get_manifest(row.manifest_id).files]
    title = str(row.origin.get("url") or row.origin.get("path") or "code")
    receipt = notebooks.receipt_of(ctx, access, row.id)
    return Code(
        id=row.id,
        title=title,
        origin=row.origin,
        size=row.size,
        files=row.files,
        scripts=sorted((p for p in paths if p.endswith((".py", ".sh"))), key=_unlikeliness)[:_MAX_SCRIPTS],
        notebooks=[p for p in paths if p.endswith(".ipynb")][:_MAX_SCRIPTS],
        receipt=receipt,
        suggested=suggest_name(ctx, access, receipt.notebook if receipt else title),
    )


def suggest_name(ctx: Context, access: Access, title: str, of: type[Job | Sweep] = Job) -> str:
    """Return a free name, from the name of a file, folder, repository or earlier job; numbered if that is taken."""
    stem = re.sub(r"(\.git|\.tar)?(\.(zip|tar|tgz|gz|bz2|xz|py|sh|git|ipynb))?/?$", "", title.replace("\\", "/"))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", stem.rstrip("/").rpartition("/")[2]).strip("-._")
    base = re.sub(r"-\d{1,6}$", "", plain)[:52] or "job"
    with ctx.db.read() as session:
        mine = select(of.name).where(of.workspace_id == access.workspace_id)
        taken = set(session.scalars(mine.where(of.name.startswith(base, autoescape=True))))
    if base not in taken:
        return base
    return next(name for n in range(2, len(taken) + 3) if (name := f"{base}-{n}") not in taken)


def preview(ctx: Context, access: Access, draft: Draft) -> dict[str, Any]:
    """Return the draft with consistent arguments, its command, and whether the job would start now."""
    try:
        draft = in_step(draft)
        spec = to_spec(draft, unfinished=True)
    except ShoalError as error:
        problem = f"{error.message} {error.hint}" if error.hint else error.message
        return {"draft": draft, "preview": Preview(command=None, problem=problem, fit=None, fit_text="")}
    fits, text = fit(ctx, access, spec)
    source = origin(ctx, access, draft.source_id)
    command = training_command(spec, workspace=access.workspace, source=source)
    shown = Preview(
        command=command,
        problem=None,
        where=where_to_run(source),
        fit=fits,
        fit_text=text,
        advice=preflights.advise(ctx, spec).why,
        findings=_findings(ctx, access, spec),
    )
    return {"draft": draft, "preview": shown}


def _findings(ctx: Context, access: Access, spec: JobSpec) -> list[Finding]:
    try:
        found = code_checks.of_job(ctx, access, spec).findings
    except NotFound:  # no code yet
        return []
    return [f for f in found if f.severity is not Severity.HINT]


def form_data(ctx: Context, access: Access, draft: Draft) -> dict[str, Any]:
    """Return all data of the page for a draft."""
    found = code(ctx, access, draft.source_id) if draft.source_id else None
    return {"source": found, "error": None, **preview(ctx, access, draft), **choices(ctx, access)}


def origin(ctx: Context, access: Access, source_id: str) -> dict[str, Any]:
    """Return the origin of a source; empty if the source does not exist."""
    try:
        with ctx.db.read() as session:
            return lookup.source(session, access, source_id).origin
    except NotFound:
        return {}


def fit(ctx: Context, access: Access, spec: JobSpec) -> tuple[Literal["now", "later", "never"], str]:
    """Return whether a job would start now, later or never, as decided by the scheduler, with a text for users."""
    try:
        waits_for = queue.waits_for(ctx, access, spec)
    except ShoalError as error:
        return "never", error.message
    return ("now", "It would start immediately.") if waits_for is None else ("later", f"It would wait: {waits_for}.")


def _datasets(found: list[DatasetView]) -> list[DatasetChoice]:
    by_name: dict[str, DatasetChoice] = {}
    for version in found:  # newest first
        if version.status == DatasetStatus.AVAILABLE:
            blank = DatasetChoice(name=version.name, versions=[], size=version.size)
            by_name.setdefault(version.name, blank).versions.append(version.version)
    return sorted(by_name.values(), key=lambda d: d.name)


def _unlikeliness(path: str) -> tuple[int, int, bool, str]:
    folder, _, name = path.rpartition("/")
    place_ = _LIKELY.index(name) if name in _LIKELY else len(_LIKELY)
    hidden = name.startswith(("_", "test_")) or name in ("setup.py", "conftest.py")
    return (folder.count("/") + 1 if folder else 0, place_ + 10 * hidden, hidden, path)
