"""JupyterLab in a running job: started where `training attach` gets in, opened for those who may, as long as they may."""

from __future__ import annotations

from sqlalchemy import select

from shoal.core.attach import JupyterView
from shoal.core.errors import Forbidden
from shoal.core.people import Role
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.jupyter import Guest, Lab
from shoal.server.models.people import Member, SessionRow, User
from shoal.server.policy import Access
from shoal.server.services import attaches


def ask(ctx: Context, access: Access, name_or_id: str, node: int = 0) -> JupyterView:
    """Have it started; to be asked again until it is ready."""
    way, lab = _lab(ctx, access, name_or_id, node)
    return JupyterView(job=way.job.name, node=node, is_ready=lab is not None)


def enter(ctx: Context, access: Access, name_or_id: str, node: int = 0) -> tuple[Lab, str] | None:
    """Where the browser of this session is let in, and the code that does it; None while it starts."""
    if not access.principal.key_id.startswith("session_"):
        raise Forbidden("JupyterLab is for browsers that are signed in; a key does not open it.", hint="shoal console")
    way, lab = _lab(ctx, access, name_or_id, node)
    if lab is None:
        return None
    attaches.tell_attached(ctx, way, f"{access.principal.email} opens JupyterLab on node {node}")
    return lab, lab.offer(Guest(access.principal.key_id, access.principal.user_id, access.workspace_id))


def may_still(ctx: Context, guest: Guest) -> bool:
    """Signed in, not disabled, and a member of the workspace who may attach."""
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


def _lab(ctx: Context, access: Access, name_or_id: str, node: int) -> tuple[attaches.Way, Lab | None]:
    way = attaches.way(ctx, access, name_or_id, node)
    return way, ctx.labs.open(ctx, way.door) if way.is_ready else None
