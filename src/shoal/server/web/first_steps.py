"""The preflight a job from the form has before it starts, where it should have one: the page asks until it is over."""

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
from shoal.server.services import preflights
from shoal.server.web.forms import Form


class Trying(View):
    """Why a job is not submitted yet."""

    why: str = ""
    """It is tried at all."""
    error: str = ""
    """Why it cannot be submitted though it was tried."""
    preflight: PreflightView | None = None
    """None: what is in the form is no longer what was tried."""
    of: str = ""
    """Of what is tried, so that nothing else is started because of it."""
    since: float = 0.0


def before(ctx: Context, access: Access, spec: JobSpec, form: Form) -> tuple[Trying | None, str | None]:
    """What a job has to wait for; or nothing, and the preflight whose report goes with it."""
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
