"""The new-sweep page: the form of a job with values for its parameters; empty, or from an earlier job or sweep."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shoal.core.errors import ShoalError
from shoal.server.context import Context, Ctx
from shoal.server.jobs import service as jobs
from shoal.server.models.sweeps import Sweep
from shoal.server.policy import Access, Worker
from shoal.server.sweeps import service as sweeps
from shoal.server.web.drafts import job as drafts
from shoal.server.web.drafts import new_job, new_sweep
from shoal.server.web.drafts.sweep import ParamRow, SweepDraft, from_form, from_sweep, to_sweep
from shoal.server.web.forms import Fields, go
from shoal.server.web.nav import base_path, sweep_path
from shoal.server.web.render import page, refused

router = APIRouter(prefix="/w/{workspace}/sweeps/new")


@router.get("")
def form(
    ctx: Ctx, request: Request, access: Worker, job: str = "", clone: Annotated[str, Query(alias="from")] = ""
) -> Response:
    """Show the form, empty or with the values of an earlier job or sweep."""
    if job:
        old = jobs.get(ctx, access, job)
        draft = _named(ctx, access, new_sweep.like_job(ctx, access, old), f"{old.name}-sweep")
    elif clone:
        earlier = sweeps.get(ctx, access, clone)
        draft = _named(ctx, access, from_sweep(earlier, drafts.from_spec(earlier.spec.job)), earlier.name)
    else:
        draft = SweepDraft(params=[ParamRow()])
    return _form(ctx, request, access, draft)


@router.post("")
def submit(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Start the sweep and go to its page. If it is refused, the form keeps what was typed."""
    draft = from_form(fields)
    try:
        made = sweeps.create(ctx, access, to_sweep(draft))
    except ShoalError as error:
        return refused(request, ctx, access, "new_sweep.html", new_sweep.form_data(ctx, access, draft), error)
    return go(request, sweep_path(base_path(access), made.name, made.id))


@router.post("/preview")
def preview(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Show the number of trials, the command, and the text beside each field."""
    name = "_new_sweep_preview.html"
    return page(request, ctx, access, name, new_sweep.preview(ctx, access, from_form(fields)), part=name)


@router.post("/restore")
def restore(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Show the form with what was typed earlier, for a page that was left before it was submitted."""
    return _form(ctx, request, access, from_form(fields))


def _form(ctx: Context, request: Request, access: Access, draft: SweepDraft) -> Response:
    data = new_sweep.form_data(ctx, access, draft)
    return page(request, ctx, access, "new_sweep.html", data, part="_new_sweep_form.html")


def _named(ctx: Context, access: Access, draft: SweepDraft, title: str) -> SweepDraft:
    return draft.model_copy(update={"name": new_job.suggest_name(ctx, access, title, Sweep)})
