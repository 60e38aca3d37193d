"""Code of a job, and everything needed to run it again: files, Python, packages, variables, hyperparameters, revision."""

from __future__ import annotations

from typing import Any

from shoal.core.jobs import JobView
from shoal.core.notebooks import Receipt
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.metrics import reads as metric_reads
from shoal.server.notebooks import service as notebooks
from shoal.server.policy import Access
from shoal.server.web.files import previews
from shoal.server.web.job import history, system_metrics
from shoal.server.web.redact import Redactor


class CodeView(View):
    job: JobView
    tree: previews.Tree
    preview: previews.Preview | None
    environment: system_metrics.Environment | None
    argv: list[str]
    env: dict[str, str]
    """Variables given to the command (`argv`). In both, values whose name suggests a secret are hidden."""
    config: dict[str, Any]
    rerun: str
    receipt: Receipt | None = None
    """Receipt of the conversion, if its script was made from a notebook."""


def show(ctx: Context, access: Access, job: str, *, folder: str, file: str | None) -> CodeView:
    """Return one folder of the code, and one file: the requested one, or the script that is run."""
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
        environment=system_metrics.environment(ctx, access, view.id),
        argv=shown.spec.entry,
        env=shown.spec.env,
        config=hide.data(metric_reads.config(ctx, access, view.id)),
        rerun=history.rerun_command(shown),
        receipt=notebooks.receipt_of(ctx, access, view.spec.source_id) if view.spec.source_id else None,
    )


def hidden(view: JobView, hide: Redactor) -> JobView:
    """Return the job with secrets in its command and variables hidden."""
    spec = view.spec.model_copy(update={"entry": hide.words(view.spec.entry), "env": hide.env(view.spec.env)})
    return view.model_copy(update={"spec": spec})


def entry_file(job: JobView, files: previews.Files) -> str | None:
    """Return the first word of the command that names a file or module of the source; None if there is none."""
    paths = {entry.path for entry in files.manifest.files}
    for word in job.spec.entry:
        bare = word.removeprefix("./")
        for path in (bare, f"{bare.replace('.', '/')}.py", f"{bare.replace('.', '/')}/__main__.py"):
            if path in paths:
                return path
    return None
