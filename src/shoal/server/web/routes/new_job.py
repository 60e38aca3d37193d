"""The new-job page: code, arguments, resources, and the equivalent command."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shoal.core.errors import ShoalError
from shoal.core.notebooks import NotebookFetch
from shoal.core.people import GitFetch
from shoal.server.artifacts import sources
from shoal.server.context import Context, Ctx
from shoal.server.jobs import service as jobs
from shoal.server.notebooks import service as notebooks
from shoal.server.policy import Access, Worker
from shoal.server.preflight import service as preflights
from shoal.server.web.drafts import first_steps, new_job, sample
from shoal.server.web.drafts.first_steps import Trying
from shoal.server.web.drafts.job import Draft, from_form, from_job, to_spec
from shoal.server.web.forms import Fields, go, parse
from shoal.server.web.nav import base_path, job_path
from shoal.server.web.render import is_htmx, page, refused

router = APIRouter(prefix="/w/{workspace}/jobs/new")
_PARTS = {"": None, "source": "_new_job_source.html", "free": "_new_job_free.html"}


@router.get("")
def form(
    ctx: Ctx,
    request: Request,
    access: Worker,
    clone: Annotated[str, Query(alias="from")] = "",
    source: str = "",
    entry: str = "",
    part: Literal["", "source", "free"] = "",
) -> Response:
    """Show the form, empty or with the values of an earlier job."""
    if clone:
        old = jobs.get(ctx, access, clone)
        draft = from_job(old).model_copy(update={"name": new_job.suggest_name(ctx, access, old.name)})
    else:
        draft = Draft(source_id=source, entry=entry)
    return page(request, ctx, access, "new_job.html", new_job.form_data(ctx, access, draft), part=_PARTS[part])


@router.post("")
def submit(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Submit the job and go to its page. If it is refused, the form keeps what was typed.

    If a preflight is recommended, it runs first: the page shows its progress and submits the form again.
    """
    draft = from_form(fields)
    try:
        spec = to_spec(draft)
        trying, carried = first_steps.before(ctx, access, spec, fields) if is_htmx(request) else (None, None)
        if trying is not None:
            return _show(ctx, request, access, trying)
        made = preflights.submit(ctx, access, spec, carried)
    except ShoalError as error:
        if "asks" in fields:  # the request was repeated by the page: show the error in its place
            return _show(ctx, request, access, Trying(error=error.message))
        return refused(request, ctx, access, "new_job.html", new_job.form_data(ctx, access, draft), error)
    return go(request, job_path(base_path(access), made.name, made.id))


@router.post("/sample")
def start_sample(ctx: Ctx, request: Request, access: Worker) -> Response:
    """Start the sample job and go to its page."""
    made = sample.start(ctx, access)
    return go(request, job_path(base_path(access), made.name, made.id))


@router.post("/preview")
def preview(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Show the command for the current form, and keep the two forms of the arguments (rows, line) in agreement."""
    name = "_new_job_preview.html"
    return page(request, ctx, access, name, new_job.preview(ctx, access, from_form(fields)), part=name)


@router.post("/restore")
def restore(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Show the form with what was typed earlier, for a page that was left before it was submitted."""
    return _form(ctx, request, access, from_form(fields), "_new_job_form.html")


@router.post("/git")
def fetch_git(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Fetch a repository, so that its script can be chosen."""
    draft = from_form(fields)
    body = parse(GitFetch, url=draft.git_url, revision=draft.git_revision or None)
    made = sources.from_git(ctx, access, body)
    return _form(ctx, request, access, draft.model_copy(update={"source_id": made.id}), "_new_job_source.html")


@router.post("/notebook")
def bring_notebook(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Convert a notebook to a script: the one chosen in the code, or one at a URL."""
    draft = from_form(fields)
    if draft.code == "notebook":
        asked = parse(NotebookFetch, url=draft.notebook_url, token=fields.get("notebook_token", "").strip() or None)
        made = notebooks.from_url(ctx, access, asked)
    else:
        made = notebooks.in_source(ctx, access, draft.source_id, draft.entry)
    draft = draft.model_copy(update={"source_id": made.source.id, "entry": made.entry})
    return _form(ctx, request, access, draft, "_new_job_source.html")


def _show(ctx: Context, request: Request, access: Access, trying: Trying) -> Response:
    name = "_new_job_trying.html"
    answer = page(request, ctx, access, name, {"trying": trying}, part=name, status=202)
    answer.headers.update({"HX-Retarget": "#preflight", "HX-Reswap": "innerHTML"})
    return answer


def _form(ctx: Context, request: Request, access: Access, draft: Draft, part: str) -> Response:
    return page(request, ctx, access, "new_job.html", new_job.form_data(ctx, access, draft), part=part)
