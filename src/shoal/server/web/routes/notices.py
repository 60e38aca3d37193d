"""Notifications: rules of a workspace, and the bell of every page."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.errors import InvalidSpec
from shoal.core.notices import Channel, RuleSave
from shoal.server.context import Ctx
from shoal.server.notices import loop, rules
from shoal.server.policy import PersonalView, Reader, Viewer, Writer
from shoal.server.web.forms import Fields, done, parse
from shoal.server.web.nav import base_path
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}/notifications")
everywhere = APIRouter(prefix="/notices")
KINDS = [
    ("job_failed", "a job fails"), ("job_ended", "a job ends"), ("job_stalled", "a job stalls"), ("metric_nan", "a metric is not a finite number"),
    ("metric_above", "a metric is above a limit"), ("metric_below", "a metric is below a limit"), ("budget", "a budget is nearly used up"),
    ("lease_ending", "a rented machine ends soon"), ("device_drained", "a device is drained"),
]  # fmt: skip


@router.get("")
def show(ctx: Ctx, request: Request, access: Viewer) -> Response:
    """Show the notification rules of the person and the workspace."""
    data = {"rules": rules.list_rules(ctx, access), "kinds": KINDS}
    return page(request, ctx, access, "notifications.html", data, part="_notification_rules.html")


@router.post("")
def add(ctx: Ctx, request: Request, access: PersonalView, form: Fields) -> Response:
    """Add a rule; the page then shows the secret that signs its webhooks."""
    text, to = form.get("value", "").strip(), form.get("to", "").strip()
    try:
        value = float(text) if text else None
    except ValueError:
        raise InvalidSpec(f"'{text}' is not a number.") from None
    how = form.get("channel", "")
    channels = [parse(Channel, type=how, to=to)] if how else []
    fields = {name: form.get(name, "").strip() for name in ("kind", "jobs", "metric")}
    if value is not None and fields["kind"] == "lease_ending":
        value *= 60.0
    body = parse(RuleSave, **fields, value=value, channels=channels, shared="shared" in form)
    made = rules.add(ctx, access, body)
    data = {"rules": rules.list_rules(ctx, access), "made": made}
    return page(request, ctx, access, "notification_made.html", data, part="_notification_made.html")


@router.post("/{rule}/delete")
def remove(ctx: Ctx, request: Request, access: PersonalView, rule: str) -> Response:
    """Delete a rule."""
    rules.remove(ctx, access, rule)
    return done(request, "The rule was deleted.", f"{base_path(access)}/notifications")


@router.post("/{rule}/test")
def test(ctx: Ctx, request: Request, access: PersonalView, rule: str) -> Response:
    """Send a test through all channels of a rule."""
    with ctx.db.read() as session:
        found = rules.find(session, access, rule)
        session.expunge(found)
    loop.test(ctx, found)
    return done(request, "A test was sent; the list shows whether it arrived.", f"{base_path(access)}/notifications")


@everywhere.get("")
def inbox(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """Show a person's newest notices."""
    data = {"inbox": rules.inbox(ctx, principal)}
    return page(request, ctx, principal, "notices.html", data, part="_notices.html")


@everywhere.post("/read")
def mark_read(ctx: Ctx, request: Request, principal: Writer) -> Response:
    """Mark all notices as read."""
    rules.mark_read(ctx, principal)
    return done(request, "All are read.", "/notices")
