"""Notifications: rules of a workspace, and a person's notices."""

from __future__ import annotations

from shoal.core.notices import Inbox, RuleMade, RuleSave, RuleView
from shoal.server.context import Ctx
from shoal.server.notices import loop, rules
from shoal.server.policy import PersonalView, Reader, Viewer, Writer
from shoal.server.routers import api_router

router = api_router("/workspaces/{workspace}/notification-rules", tags=["notifications"])
everywhere = api_router("/notices", tags=["notifications"])


@router.get("")
def list_rules(ctx: Ctx, access: Viewer) -> list[RuleView]:
    """List your notification rules in this workspace, and those that it shares."""
    return rules.list_rules(ctx, access)


@router.post("", status_code=201)
def add_rule(ctx: Ctx, access: PersonalView, request: RuleSave) -> RuleMade:
    """Add a notification rule. The answer has the secret that signs its webhooks; it is shown only once.

    A webhook is a POST of JSON with `Shoal-Event`, `Shoal-Delivery`, `Shoal-Timestamp` and `Shoal-Signature`, which is `v1=` and
    the hexadecimal HMAC-SHA256 of `TIMESTAMP.BODY`. Answers other than 2xx are tried again, four times within 72 minutes.
    """
    return rules.add(ctx, access, request)


@router.delete("/{rule}", status_code=204)
def remove_rule(ctx: Ctx, access: PersonalView, rule: str) -> None:
    """Delete a notification rule."""
    rules.remove(ctx, access, rule)


@router.post("/{rule}/test", status_code=202)
def test_rule(ctx: Ctx, access: PersonalView, rule: str) -> None:
    """Send a test through all channels of a rule; the list of rules shows whether it arrived."""
    with ctx.db.read() as session:
        found = rules.find(session, access, rule)
        session.expunge(found)
    loop.test(ctx, found)


@everywhere.get("")
def inbox(ctx: Ctx, principal: Reader) -> Inbox:
    """Return your newest notices, of all workspaces."""
    return rules.inbox(ctx, principal)


@everywhere.post("/read", status_code=204)
def mark_read(ctx: Ctx, principal: Writer) -> None:
    """Mark all your notices as read."""
    rules.mark_read(ctx, principal)
