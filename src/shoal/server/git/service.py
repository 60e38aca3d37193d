"""Git hosts and their tokens, named repositories, and fetching one at a revision."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import Corrupt, InvalidSpec, NameTaken, NotFound, Unreachable
from shoal.core.names import did_you_mean
from shoal.core.people import GitFetch, GitSourceAdd, GitSourceView, RegistryConnect
from shoal.core.schema import utcnow
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.git.fetch import Checkout, Credential, GitFetcher
from shoal.server.git.urls import GitUrl, check_revision, parse_git_url, permitted_addresses
from shoal.server.models.git import GitSource, Registry
from shoal.server.policy import Access

_WAIT_S = 10.0


def connect_registry(ctx: Context, access: Access, body: RegistryConnect) -> dict[str, str]:
    """Store the token for a git host, replacing an older one."""
    host, username, token = body.host.lower(), body.username.strip(), body.token.strip()
    if not token or not username or not (token.isprintable() and username.isprintable()) or " " in token:
        raise InvalidSpec("A token or user name for a git host is one line without control characters.")
    sealed = ctx.vault.seal(token, bound_to=_bond(access, host))

    def work(session: Session) -> None:
        row = session.get(Registry, (access.workspace_id, host))
        if row is None:
            row = Registry(workspace_id=access.workspace_id, host=host)
            session.add(row)
        row.username, row.sealed, row.created_at = username, sealed, utcnow()
        record_action(session, AuditAction.REGISTRY_CONNECT, host, workspace=access)

    ctx.db.write(work)
    return {"host": host, "username": username}


def list_registries(ctx: Context, access: Access) -> list[dict[str, str]]:
    with ctx.db.read() as session:
        rows = session.scalars(
            select(Registry).where(Registry.workspace_id == access.workspace_id).order_by(Registry.host)
        )
        return [{"host": row.host, "username": row.username} for row in rows]


def disconnect_registry(ctx: Context, access: Access, host: str) -> None:
    def work(session: Session) -> None:
        row = session.get(Registry, (access.workspace_id, host.lower()))
        if row is None:
            raise NotFound(f"No token is stored for the git host '{host}'.")
        session.delete(row)
        record_action(session, AuditAction.REGISTRY_DISCONNECT, row.host, workspace=access)

    ctx.db.write(work, essential=True)


def add_git_source(ctx: Context, access: Access, body: GitSourceAdd) -> GitSourceView:
    """Store a repository under a name. It is fetched only when a job uses it."""
    url = parse_git_url(body.url, private=ctx.private).text
    revision = check_revision(body.revision) if body.revision else None

    def work(session: Session) -> GitSourceView:
        if session.get(GitSource, (access.workspace_id, body.name)):
            raise NameTaken(f"There already is a source '{body.name}'.", hint=f"shoal source delete {body.name}")
        row = GitSource(
            workspace_id=access.workspace_id, name=body.name, url=url, revision=revision, created_at=utcnow()
        )
        session.add(row)
        return _view(row)

    return ctx.db.write(work)


def list_git_sources(ctx: Context, access: Access) -> list[GitSourceView]:
    with ctx.db.read() as session:
        rows = session.scalars(
            select(GitSource).where(GitSource.workspace_id == access.workspace_id).order_by(GitSource.name)
        )
        return [_view(row) for row in rows]


def delete_git_source(ctx: Context, access: Access, name: str) -> None:
    ctx.db.write(lambda session: session.delete(_source(session, access, name)), essential=True)


@contextmanager
def fetch(ctx: Context, access: Access, body: GitFetch) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the directory with a repository's files at a revision, and their origin. The directory is removed afterwards."""
    text, revision = _requested(ctx, access, body)
    url = parse_git_url(text, private=ctx.private)
    work = _work_dir(ctx)
    try:
        done = _checkout(ctx, access, url, revision, work)
        yield done.tree, {"kind": "git", "url": url.text, "revision": done.revision, "commit": done.commit}
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def slot(ctx: Context) -> Iterator[None]:
    """Hold one of the few slots for fetching code; each fetch occupies a request thread. Raises when none becomes free."""
    slots = ctx.guards.git_slots
    if not slots.acquire(timeout=_WAIT_S):
        raise Unreachable("Too many code fetches are running; try again shortly.")
    try:
        yield
    finally:
        slots.release()


def token_for(ctx: Context, access: Access, host: str) -> str | None:
    """Return the stored token for a host, or None. The caller must send it to that host only, over https."""
    found = _stored_credential(ctx, access, host.lower())
    return found.token if found else None


def clean_up(ctx: Context) -> None:
    """Remove the directories that fetches of a killed server left behind; called at start."""
    shutil.rmtree(_work_root(ctx), ignore_errors=True)


def _checkout(ctx: Context, access: Access, url: GitUrl, revision: str | None, work: Path) -> Checkout:
    with slot(ctx):
        return GitFetcher(
            url,
            work,
            timeout_s=ctx.settings.git_timeout_s,
            max_bytes=ctx.settings.max_source_mb << 20,
            credential=_credential(ctx, access, url),
            pinned=None if ctx.private else permitted_addresses(url, ctx.settings.git_hosts),
        ).checkout(revision)


def _requested(ctx: Context, access: Access, body: GitFetch) -> tuple[str, str | None]:
    if (body.url is None) == (body.source_name is None):
        raise InvalidSpec("Give either the URL of a repository or the name of a source.")
    url, revision = body.url or "", body.revision
    if body.source_name is not None:
        with ctx.db.read() as session:
            row = _source(session, access, body.source_name)
        url, revision = row.url, revision or row.revision
    return url, check_revision(revision) if revision else None


def _credential(ctx: Context, access: Access, url: GitUrl) -> Credential | None:
    """Return the stored token for a URL, or None unless it is https or on this machine: tokens are not sent unencrypted."""
    if url.scheme != "https" and not (url.scheme == "http" and url.is_loopback):
        return None
    return _stored_credential(ctx, access, url.netloc)


def _stored_credential(ctx: Context, access: Access, host: str) -> Credential | None:
    with ctx.db.read() as session:
        row = session.get(Registry, (access.workspace_id, host))
    if row is None:
        return None
    try:
        return Credential(row.username, ctx.vault.open(row.sealed, bound_to=_bond(access, row.host)))
    except Corrupt:
        raise Corrupt(
            f"The token for {host} cannot be decrypted: it was stored with another secret.key. Store it again.",
            hint=f"shoal code-registry connect --host {host}",
        ) from None


def _source(session: Session, access: Access, name: str) -> GitSource:
    row = session.get(GitSource, (access.workspace_id, name))
    if row is None:
        known = session.scalars(select(GitSource.name).where(GitSource.workspace_id == access.workspace_id))
        raise NotFound(f"There is no source '{name}' here.{did_you_mean(name, known)}", hint="shoal source list")
    return row


def _work_root(ctx: Context) -> Path:
    return ctx.layout.server_dir / "git"


def _work_dir(ctx: Context) -> Path:
    root = _work_root(ctx)
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Path(tempfile.mkdtemp(dir=root))


def _bond(access: Access, host: str) -> str:
    # Secrets are bound to "workspace/name". Names contain no slash, so a secret cannot be used as a token or vice versa.
    return f"{access.workspace_id}/registry/{host}"


def _view(row: GitSource) -> GitSourceView:
    return GitSourceView(name=row.name, url=row.url, revision=row.revision, created_at=row.created_at)
