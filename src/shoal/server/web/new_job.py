"""What the new-job page offers to choose from, and what it says about a draft: its command, and whether it fits now."""

from __future__ import annotations

import re
from typing import Any, Literal

from sqlalchemy import select

from shoal.core.checks import Finding, Severity
from shoal.core.datasets import DatasetStatus, DatasetView
from shoal.core.errors import NotFound, ShoalError
from shoal.core.jobs import JobSpec
from shoal.core.notebooks import Receipt
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.models.jobs import Job
from shoal.server.models.sweeps import Sweep
from shoal.server.policy import Access
from shoal.server.services import (
    checkpoints,
    code_checks,
    datasets,
    find,
    git,
    machines,
    notebooks,
    preflights,
    queue,
    secrets,
)
from shoal.server.web.command import training_command, where_to_run
from shoal.server.web.drafts import Draft, in_step, to_spec

_LIKELY = ("train.py", "main.py", "run.py", "finetune.py", "pretrain.py", "train.sh", "run.sh")
_MAX_SCRIPTS = 1000
_MAX_CHECKPOINTS = 100


class Code(View):
    """A source one can choose the script of."""

    id: str
    title: str
    origin: dict[str, Any]
    size: int
    files: int
    scripts: list[str]
    """The likeliest first."""
    notebooks: list[str]
    """Told apart: one that is chosen has to become a script first."""
    receipt: Receipt | None = None
    """Of the notebook that the script was made of."""
    suggested: str
    """A name for the job that is still free."""


class Preview(View):
    command: str | None
    problem: str | None
    """Why there is no command yet."""
    where: str = ""
    """Where to type it."""
    fit: Literal["now", "later", "never"] | None
    fit_text: str
    advice: str = ""
    """Why its first steps are tried before it starts, if they are."""
    findings: list[Finding] = []
    """What the code check has to say, but for hints."""


class DatasetChoice(View):
    name: str
    versions: list[int]
    """Available ones, newest first."""
    size: int


def choices(ctx: Context, access: Access) -> dict[str, Any]:
    """Everything the form lets one choose from, besides code."""
    saved = [c for c in checkpoints.list_checkpoints(ctx, access, None)[::-1] if not c.damaged]
    return {
        "datasets": _datasets(datasets.list_datasets(ctx, access)),
        "secrets": [s.name for s in secrets.list_secrets(ctx, access)],
        "checkpoints": saved[:_MAX_CHECKPOINTS],
        "git_sources": git.list_git_sources(ctx, access),
        "pool": machines.capacity(ctx),
    }


def code(ctx: Context, access: Access, source_id: str) -> Code | None:
    """None where there is no such source, or not any more."""
    try:
        with ctx.db.read() as session:
            row = find.source(session, access, source_id)
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
    """From a file's, folder's or repository's name, or an earlier job's; with a number if that is taken."""
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
    """The draft with its arguments in step, what it would be as a command, and whether there is room for it now."""
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
    """All the page shows for a draft."""
    found = code(ctx, access, draft.source_id) if draft.source_id else None
    return {"source": found, "error": None, **preview(ctx, access, draft), **choices(ctx, access)}


def origin(ctx: Context, access: Access, source_id: str) -> dict[str, Any]:
    """Where a source came from; nothing if it is not there."""
    try:
        with ctx.db.read() as session:
            return find.source(session, access, source_id).origin
    except NotFound:
        return {}


def fit(ctx: Context, access: Access, spec: JobSpec) -> tuple[Literal["now", "later", "never"], str]:
    """By the scheduler's own decision."""
    try:
        waits_for = queue.waits_for(ctx, access, spec)
    except ShoalError as error:
        return "never", error.message
    return ("now", "It would start at once.") if waits_for is None else ("later", f"It would wait: {waits_for}.")


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
