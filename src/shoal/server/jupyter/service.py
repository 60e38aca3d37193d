"""JupyterLab in a running job: started over the same SSH session as `training attach`, open only to people who may attach."""

from __future__ import annotations

from sqlalchemy import select

from shoal.core.attach import JupyterView
from shoal.core.errors import Forbidden
from shoal.core.people import Role
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.jobs import attach as attaches
from shoal.server.jupyter.ports import Guest, Lab
from shoal.server.models.users import SessionRow, User
from shoal.server.models.workspaces import Member
from shoal.server.policy import Access


def start(ctx: Context, access: Access, name_or_id: str, node: int = 0) -> JupyterView:
    """Start JupyterLab in a job; call again until it is ready."""
    way, lab = _lab(ctx, access, name_or_id, node)
    return JupyterView(job=way.job.name, node=node, is_ready=lab is not None)


def enter(ctx: Context, access: Access, name_or_id: str, node: int = 0) -> tuple[Lab, str] | None:
    """Return the JupyterLab and a one-time code that gives this browser session access; None while it starts."""
    if not access.principal.key_id.startswith("session_"):
        raise Forbidden("JupyterLab opens only in a signed-in browser, not with an API key.", hint="shoal console")
    way, lab = _lab(ctx, access, name_or_id, node)
    if lab is None:
        return None
    attaches.record_attached(ctx, way, f"{access.principal.email} opened JupyterLab on node {node}")
    return lab, lab.offer(Guest(access.principal.key_id, access.principal.user_id, access.workspace_id))


def may_still(ctx: Context, guest: Guest) -> bool:
    """Check whether a person is still signed in, not disabled, and a workspace member who may attach to jobs."""
    signed_in = (
        select(Member.role)
        .join(User, User.id == Member.user_id)
        .join(SessionRow, SessionRow.user_id == User.id)
        .where(SessionRow.id == guest.session_id, SessionRow.expires_at > utcnow(), User.disabled_at.is_(None))
        .where(User.id == guest.user_id, Member.workspace_id == guest.workspace_id)
    )
    with ctx.db.read() as session:
        role = session.scalar(signed_in)
    return role is not None and Role(role).covers(Role.MEMBER)


def _lab(ctx: Context, access: Access, name_or_id: str, node: int) -> tuple[attaches.AttachTarget, Lab | None]:
    way = attaches.find_target(ctx, access, name_or_id, node)
    return way, ctx.labs.open(ctx, way.endpoint) if way.is_ready else None
