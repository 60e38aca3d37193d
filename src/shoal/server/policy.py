"""Authorisation of routes. Every route declares one policy as a dependency; the app refuses to start without.

Things of another workspace give 404, never 403, so that not even their existence is revealed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, NoReturn

from fastapi import Depends, FastAPI, Request
from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection

from shoal.core.agents import INSTANCE_HEADER, TOKEN_HEADER
from shoal.core.errors import AuthError, Forbidden, KeyExpired, NotFound, NotSignedIn, WrongInstance
from shoal.core.people import ALL_SCOPES, Role, Scope
from shoal.core.schema import utcnow
from shoal.core.states import AttemptState, NodeState
from shoal.server import actor
from shoal.server.context import Context, Ctx
from shoal.server.edge.connections import authenticated
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.swarm import SwarmPeer
from shoal.server.models.users import ApiKey, SessionRow, User
from shoal.server.models.workspaces import Member, Workspace
from shoal.server.web.cookies import session_token

_DELIVERS_FOR = timedelta(days=8)
"""Time after the end of an attempt in which its agents may deliver; an agent without a connection gives up after seven days."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The person behind a request."""

    user_id: str
    email: str
    is_admin: bool
    scopes: frozenset[Scope]
    key_id: str
    """Id of the API key, session or job used."""
    only_workspace: str | None = None
    """Id of the only workspace that a job's own token may see; None for people."""


@dataclass(frozen=True, slots=True)
class Access:
    """Person in a workspace; needed for every query of the workspace's data."""

    principal: Principal
    workspace_id: str
    workspace: str
    role: Role


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """Node that an agent's token belongs to."""

    job_id: str
    attempt_id: str
    attempt: int
    node: int


def hash_token(token: str) -> bytes:
    """Return the SHA-256 of a token. Tokens have 256 random bits, so a fast hash is safe."""
    return hashlib.sha256(token.encode()).digest()


class Policy:
    """Base of all policies; `check_app` looks for an instance on every route."""


class Public(Policy):
    """Policy of routes that anyone may call."""

    async def __call__(self) -> None:
        return None


class SignedIn(Policy):
    """Policy of routes for people who are signed in, with a scope; with `admin` only for admins of the server."""

    def __init__(self, scope: Scope, *, admin: bool = False):
        self.scope, self.admin = scope, admin

    def __call__(self, request: Request, ctx: Ctx) -> Principal:
        with ctx.db.read() as session:
            principal = identify(session, request)
        ctx.guards.last_uses.note(principal.key_id)
        if principal.only_workspace is not None:
            raise Forbidden("A job's own token can only read its workspace.")
        _demand(principal, self.scope)
        if self.admin and not principal.is_admin:
            raise Forbidden("Only an admin of this server may do that.")
        return principal


class InWorkspace(Policy):
    """Policy of routes for members of a workspace, with a role and a scope."""

    def __init__(self, role: Role, scope: Scope):
        self.role, self.scope = role, scope

    def __call__(self, workspace: str, request: Request, ctx: Ctx) -> Access:
        with ctx.db.read() as session:
            principal = identify(session, request)
            access = find_workspace(session, principal, workspace)
        ctx.guards.last_uses.note(principal.key_id)
        _demand(principal, self.scope)
        if not access.role.covers(self.role):
            raise Forbidden(
                f"This needs the role '{self.role}' in workspace '{access.workspace}'; yours is '{access.role}'."
            )
        return access


class Phase(StrEnum):
    """Part of a node's life in which a route is open to its agent."""

    RUNNING = "running"
    """Open until the node has ended: what an agent reads, and what it does for people."""
    DELIVERING = "delivering"
    """Open until the agent has delivered everything: a node's logs and metrics often arrive after its end."""
    ALWAYS = "always"
    """Open after that too: for a last heartbeat, whose reply may have been lost."""


class AgentOnly(Policy):
    """Policy of routes for agents, with their node's token."""

    def __init__(self, phase: Phase):
        self.phase = phase

    def __call__(self, request: Request, ctx: Ctx) -> AgentIdentity:
        token, meant = request.headers.get(TOKEN_HEADER, ""), request.headers.get(INSTANCE_HEADER)
        if meant and ctx.instance and meant != ctx.instance:
            raise WrongInstance()
        with ctx.db.read() as session:
            row = session.execute(
                select(Attempt, Node)
                .join(Attempt, Attempt.id == Node.attempt_id)
                .where(Node.token_hash == hash_token(token))
            ).one_or_none()
        if row is None:
            raise NotSignedIn("Unknown agent token: the job may have been deleted.")
        attempt, node = row
        if not _is_open(attempt, node, self.phase):
            raise NotSignedIn("The attempt of this agent has ended, so its token is no longer valid.")
        authenticated(request)
        return AgentIdentity(attempt.job_id, attempt.id, attempt.number, node.index)


def _is_open(attempt: Attempt, node: Node, phase: Phase) -> bool:
    if attempt.ended_at is not None and utcnow() - attempt.ended_at > _DELIVERS_FOR:
        return False
    if phase is Phase.RUNNING:
        return attempt.state != AttemptState.ENDED and not NodeState(node.state).is_terminal
    return phase is Phase.ALWAYS or not node.final


def identify(session: Session, request: Request) -> Principal:
    """Return the person behind a request, by API key, session or job token; raise if there is none.

    Notes them as the actor of the request, for the audit log.
    """
    principal = _find_principal(session, request)
    actor.identified(principal.email, principal.key_id)
    authenticated(request)
    return principal


def is_known(ctx: Context, connection: HTTPConnection) -> bool:
    """Return whether a request has valid credentials of a person, a job, an agent or a peer, for whatever route."""
    with ctx.db.read() as session:
        if token := connection.headers.get(TOKEN_HEADER):
            hashed = hash_token(token)
            return session.scalar(select(Node.index).where(Node.token_hash == hashed).limit(1)) is not None
        try:
            _find_principal(session, connection)
        except AuthError:
            token = connection.headers.get("Authorization", "").partition(" ")[2].strip()
            return session.scalar(select(SwarmPeer.id).where(SwarmPeer.token_hash == hash_token(token))) is not None
    return True


def _find_principal(session: Session, request: HTTPConnection) -> Principal:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        # A browser's cookie holds a session, never a key; `web.host_check` has checked that changes come from console pages.
        if cookie := session_token(request):
            return _in_session(session, hash_token(cookie)) or _unknown_session()
        raise NotSignedIn()
    hashed, now = hash_token(token.strip()), utcnow()
    key = session.execute(
        select(ApiKey, User).join(User, User.id == ApiKey.user_id).where(ApiKey.secret_hash == hashed)
    ).one_or_none()
    if key is not None:
        _refuse_disabled(key.User)
        if key.ApiKey.revoked_at or (key.ApiKey.expires_at and key.ApiKey.expires_at <= now):
            raise KeyExpired()
        scopes = frozenset(Scope(s) for s in key.ApiKey.scopes)
        return Principal(key.User.id, key.User.email, key.User.is_admin, scopes, key.ApiKey.id)
    found = _in_session(session, hashed) or _running_job(session, hashed)
    if found is None:
        raise NotSignedIn("This key is not known to the server. Sign in with `shoal login`.")
    return found


def _in_session(session: Session, hashed: bytes) -> Principal | None:
    row = session.execute(
        select(SessionRow, User).join(User, User.id == SessionRow.user_id).where(SessionRow.secret_hash == hashed)
    ).one_or_none()
    if row is None:
        return None
    _refuse_disabled(row.User)
    if row.SessionRow.expires_at <= utcnow():
        raise KeyExpired("This session has expired. Sign in again with `shoal login`.")
    return Principal(row.User.id, row.User.email, row.User.is_admin, frozenset(ALL_SCOPES), row.SessionRow.id)


def _refuse_disabled(user: User) -> None:
    if user.disabled_at is not None:
        raise Forbidden("This account is disabled. Ask an admin of this server.")


def _unknown_session() -> NoReturn:
    raise KeyExpired("This session has ended. Sign in again.")


def _running_job(session: Session, hashed: bytes) -> Principal | None:
    """Return the principal of a job's own token, which may read the job's workspace while its attempt runs."""
    row = session.execute(
        select(Job, User)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(User, User.email == Job.created_by)
        .where(Attempt.read_token_hash == hashed, Attempt.fenced.is_(False))
    ).one_or_none()
    if row is None:
        return None
    return Principal(row.User.id, row.User.email, False, frozenset({Scope.READ}), row.Job.id, row.Job.workspace_id)


def find_workspace(session: Session, principal: Principal, name_or_id: str) -> Access:
    """Return the access to a workspace by id or name, among the person's memberships.

    Of two with one name, the one they own.
    """
    rows: Sequence[Any] = session.execute(
        select(Workspace, Member.role)
        .join(Member, Member.workspace_id == Workspace.id)
        .where(Member.user_id == principal.user_id)
        .where(or_(Workspace.id == name_or_id, Workspace.name == name_or_id))
    ).all()
    if principal.only_workspace is not None:
        rows = [row for row in rows if row[0].id == principal.only_workspace]
    if not rows:
        raise NotFound(f"There is no workspace '{name_or_id}' here.", hint="shoal workspace list")
    workspace, role = min(rows, key=lambda r: (r[0].owner_id != principal.user_id, r[0].id))
    return Access(principal, workspace.id, workspace.name, Role(role))


def check_app(app: FastAPI) -> None:
    """Raise if a route does not declare exactly one policy, so that the server does not start with an open route."""
    for route in routes_of(app):
        dependant = getattr(route, "dependant", None)
        if dependant is None or sum(isinstance(d.call, Policy) for d in dependant.dependencies) != 1:
            methods = sorted(getattr(route, "methods", None) or ())
            raise RuntimeError(f"route {methods} {getattr(route, 'path', route)} must declare exactly one policy")


def routes_of(app: FastAPI) -> Iterator[Any]:
    """Yield every route with its path, methods and dependant; newer FastAPI keeps an included router as one route."""
    for route in app.routes:
        contexts = getattr(route, "effective_route_contexts", None)
        if contexts is None:
            yield route
        else:
            yield from contexts()


def _demand(principal: Principal, scope: Scope) -> None:
    if scope not in principal.scopes:
        raise Forbidden(f"This key does not have the scope '{scope}'.", hint=f"shoal key create NAME --scope {scope}")


Anyone = Depends(Public())
Reader = Annotated[Principal, Depends(SignedIn(Scope.READ))]
Writer = Annotated[Principal, Depends(SignedIn(Scope.WRITE))]
Keyholder = Annotated[Principal, Depends(SignedIn(Scope.ADMIN))]
Admin = Annotated[Principal, Depends(SignedIn(Scope.ADMIN, admin=True))]
Viewer = Annotated[Access, Depends(InWorkspace(Role.VIEWER, Scope.READ))]
Worker = Annotated[Access, Depends(InWorkspace(Role.MEMBER, Scope.WRITE))]
PersonalView = Annotated[Access, Depends(InWorkspace(Role.VIEWER, Scope.WRITE))]
"""Access for what every member, also a viewer, may keep for themselves in a workspace."""
Owner = Annotated[Access, Depends(InWorkspace(Role.OWNER, Scope.ADMIN))]
AnyMember = Annotated[Access, Depends(InWorkspace(Role.VIEWER, Scope.ADMIN))]
Agent = Annotated[AgentIdentity, Depends(AgentOnly(Phase.RUNNING))]
DeliveringAgent = Annotated[AgentIdentity, Depends(AgentOnly(Phase.DELIVERING))]
AnyAgent = Annotated[AgentIdentity, Depends(AgentOnly(Phase.ALWAYS))]

__all__ = ["Access", "Admin", "Agent", "AgentIdentity", "AnyAgent", "AnyMember", "Anyone", "Context", "DeliveringAgent", "Keyholder", "Owner", "PersonalView",
           "Principal", "Reader",
           "Viewer", "Worker", "Writer", "check_app", "find_workspace", "hash_token", "identify", "routes_of"]  # fmt: skip
