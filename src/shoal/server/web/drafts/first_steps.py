"""The preflight of a job that is submitted from the form, if one is recommended: the page polls until it has finished."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress

from shoal.core.errors import NotFound
from shoal.core.jobs import JobSpec
from shoal.core.preflight import PATIENCE_S, PreflightView
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.policy import Access
from shoal.server.preflight import service as preflights
from shoal.server.web.forms import Form


class Trying(View):
    """Reason why a job is not submitted yet: its preflight."""

    why: str = ""
    """Why the job has a preflight at all."""
    error: str = ""
    """Why it cannot be submitted after its preflight."""
    preflight: PreflightView | None = None
    """The preflight; None if the form was changed since the preflight started."""
    of: str = ""
    """Digest of the specification that the preflight belongs to, so that no other job is submitted because of it."""
    since: float = 0.0


def before(ctx: Context, access: Access, spec: JobSpec, form: Form) -> tuple[Trying | None, str | None]:
    """Return what a job still waits for, or None and the id of the passed preflight whose report the job takes over."""
    why, of, earlier = preflights.advise(ctx, spec).why, _digest(spec), form.get("preflight", "")
    unwanted = not why or "as_it_is" in form
    is_same = bool(earlier) and form.get("of") == of
    if earlier and (unwanted or not is_same):
        _drop(ctx, access, earlier)
    if unwanted:
        return None, None
    if "asks" in form and not is_same:
        return Trying(why=why), None
    view = preflights.get(ctx, access, earlier) if is_same else preflights.start(ctx, access, spec)
    since = _number(form.get("since", "")) if is_same else time.time()
    if not view.status.is_terminal and time.time() - since <= PATIENCE_S[view.status]:
        return Trying(why=why, preflight=view, of=of, since=since), None
    if view.passed:
        return None, view.id
    _drop(ctx, access, view.id)
    return (Trying(why=why, preflight=view), None) if view.report else (None, None)


def _drop(ctx: Context, access: Access, preflight: str) -> None:
    with suppress(NotFound):
        preflights.drop(ctx, access, preflight)


def _digest(spec: JobSpec) -> str:
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:16]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
