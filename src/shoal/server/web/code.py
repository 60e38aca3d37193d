"""A job's code and all it takes to run it again: files, interpreter, packages, variables, hyperparameters, revision."""

from __future__ import annotations

from typing import Any

from shoal.core.jobs import JobView
from shoal.core.notebooks import Receipt
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.policy import Access
from shoal.server.services import jobs, metric_reads, notebooks
from shoal.server.web import previews, samples, story
from shoal.server.web.redact import Redactor


class CodeView(View):
    job: JobView
    tree: previews.Tree
    preview: previews.Preview | None
    environment: samples.Environment | None
    argv: list[str]
    env: dict[str, str]
    """The command and the variables given to it; values whose name says that they are secret are hidden."""
    config: dict[str, Any]
    rerun: str
    receipt: Receipt | None = None
    """Of the notebook that its script was made of."""


def look(ctx: Context, access: Access, job: str, *, folder: str, file: str | None) -> CodeView:
    """One folder of the code, and one file: the one asked for, or the script that is run."""
    view = jobs.get(ctx, access, job)
    files = previews.of_job(ctx, access, view.id)
    if file is None and not folder:
        file = entry_file(view, files)
    hide = Redactor.of(ctx, access)
    shown = hidden(view, hide)
    return CodeView(
        job=view,
        tree=previews.tree(files, file.rpartition("/")[0] if file else folder),
        preview=previews.preview(ctx, files, file) if file else None,
        environment=samples.environment(ctx, access, view.id),
        argv=shown.spec.entry,
        env=shown.spec.env,
        config=hide.data(metric_reads.config(ctx, access, view.id)),
        rerun=story.rerun_command(shown),
        receipt=notebooks.receipt_of(ctx, access, view.spec.source_id) if view.spec.source_id else None,
    )


def hidden(view: JobView, hide: Redactor) -> JobView:
    """As it was, but for secrets in its command and variables."""
    spec = view.spec.model_copy(update={"entry": hide.words(view.spec.entry), "env": hide.env(view.spec.env)})
    return view.model_copy(update={"spec": spec})


def entry_file(job: JobView, files: previews.Files) -> str | None:
    """The first word of the command that is a file of the source, or the module it names."""
    paths = {entry.path for entry in files.manifest.files}
    for word in job.spec.entry:
        bare = word.removeprefix("./")
        for path in (bare, f"{bare.replace('.', '/')}.py", f"{bare.replace('.', '/')}/__main__.py"):
            if path in paths:
                return path
    return None
