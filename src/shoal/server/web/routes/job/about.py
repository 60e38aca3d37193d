"""Texts and marks that people give a job: title, tags, note, description, star, archive."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.runs import RunChange
from shoal.server.context import Ctx
from shoal.server.jobs import service as jobs
from shoal.server.policy import Worker
from shoal.server.runs import changes
from shoal.server.web.forms import Fields, done, parse
from shoal.server.web.nav import base_path, job_path

router = APIRouter(prefix="/w/{workspace}/jobs/{job}")


@router.post("/about")
def about(ctx: Ctx, request: Request, access: Worker, job: str, form: Fields) -> Response:
    """Change title, tags, note, description and archive of a job."""
    view = jobs.get(ctx, access, job)
    tags = list(filter(None, re.split(r"[\s,]+", form.get("tags", ""))))
    given = {name: form[name].strip() for name in ("title", "note", "description") if name in form}
    change = parse(
        RunChange,
        jobs=[view.id],
        add_tags=[tag for tag in tags if tag not in view.tags],
        remove_tags=[tag for tag in view.tags if tag not in tags] if "tags" in form else [],
        archived=form["archived"] == "yes" if "archived" in form else None,
        **given,
    )
    changes.change(ctx, access, change)
    return done(request, "Saved.", job_path(base_path(access), view.name, view.id))


@router.post("/star")
def star(ctx: Ctx, request: Request, access: Worker, job: str) -> Response:
    """Star a job for all members of the workspace, or remove its star."""
    view = jobs.get(ctx, access, job)
    (changed,) = changes.change(ctx, access, RunChange(jobs=[view.id], starred=not view.starred))
    text = f"{view.name} is starred." if changed.starred else f"{view.name} is no longer starred."
    return done(request, text, job_path(base_path(access), view.name, view.id))
