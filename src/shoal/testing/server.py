"""Server without a process, for tests: its context on a real SQLite file, factories for people, and a client for its app.

Nothing here listens, schedules or starts agents; `shoal.testing.live` does.
"""

from __future__ import annotations

import atexit
import copy
import functools
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI
from sqlalchemy import select, text
from sqlalchemy.orm import Session
from starlette.datastructures import State

from shoal.core.artifacts import Chunk, FileEntry, Manifest, SourceCommit
from shoal.core.ids import new_id
from shoal.core.jobs import JobSpec
from shoal.core.people import ALL_SCOPES, Role, Scope
from shoal.core.schema import utcnow
from shoal.core.settings import Layout, ServerSettings
from shoal.engines.base import AgentState, Command, Engine, Gang, Machine
from shoal.engines.many import Engines
from shoal.server.app import create_app
from shoal.server.artifacts import chunks, sources
from shoal.server.context import Context
from shoal.server.db import Database
from shoal.server.jobs import service as jobs
from shoal.server.migrations import HEAD
from shoal.server.models import Base
from shoal.server.models.jobs import Attempt, Node
from shoal.server.models.workspaces import Member, Workspace
from shoal.server.notifications import Notifications
from shoal.server.people import accounts, keys
from shoal.server.people.guards import Guards, Passwords
from shoal.server.people.vault import Vault
from shoal.server.policy import Access, Principal, hash_token
from shoal.store.hashing import chunk_hash
from shoal.store.local import LocalStore
from shoal.store.wire import encode_frames

T = TypeVar("T")
_AT_EXIT = ExitStack()
atexit.register(_AT_EXIT.close)


class IdleEngine(Engine):
    """Engine with one machine that never starts anything."""

    def __init__(self, slots: int = 4):
        self.slots = slots

    def probe(self) -> list[str]:
        return []

    def capacity(self) -> list[Machine]:
        return [Machine(name="local", kind="cpu", slots=self.slots)]

    def plan(self, gang: Gang) -> list[Command]:
        return [Command(machine=node.machine, argv=[]) for node in gang.nodes]

    def start(self, gang: Gang) -> None: ...

    def status(self, attempt_id: str, node: int) -> AgentState:
        return AgentState.UNKNOWN

    def salvage(self, attempt_id: str, node: int) -> None: ...

    def cancel(self, attempt_id: str) -> None: ...

    def adopt(self) -> set[str]:
        return set()

    def clean(self, attempt_id: str) -> None: ...


def make_context(
    home: Path, *, private: bool = True, settings: ServerSettings | None = None, engine: Engine | None = None
) -> Context:
    """Make an empty server in `home`, with cheap password hashing. Close its `db` at the end."""
    layout = Layout(home)
    if not layout.database.exists():
        layout.database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        layout.database.write_bytes(_empty_database())
    return Context(
        layout=layout,
        settings=settings or ServerSettings(),
        private=private,
        db=Database(layout.database, synchronous="OFF"),
        store=LocalStore(layout.store_dir),
        vault=Vault(layout.secret_key),
        engine=engine if isinstance(engine, Engines) else Engines(local=engine or IdleEngine()),
        live=Notifications(),
        guards=Guards(passwords=Passwords(memory_kib=8, time_cost=1)),
    )


@functools.cache
def _empty_database() -> bytes:
    """Return the file of a database with all tables and no rows. Cached: creating them takes longer than most tests."""
    with tempfile.TemporaryDirectory() as folder:
        db = Database(Path(folder) / "empty.db", synchronous="OFF")
        Base.metadata.create_all(db.writer)
        with db.writer.begin() as connection:
            connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
            connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})
        db.close()
        return db.path.read_bytes()


def make_app(context: Context) -> FastAPI:
    """Make an app like `create_app`, but build the routes once per process: that takes longer than most tests."""
    app = copy.copy(_first_app())
    app.state = State()
    app.state.context = context
    return app


@functools.cache
def _first_app() -> FastAPI:
    return create_app(cast(Context, None))


def run_async(function: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in this process's one event loop for tests, and return its result."""
    return _portal().call(function)


@functools.cache
def _portal() -> BlockingPortal:
    """Return the one loop (with its worker threads) for all calls: starting one takes longer than most calls."""
    portal = start_blocking_portal(name="calls of tests")
    return _AT_EXIT.enter_context(portal)


class AppClient:
    """Client of an app in this process. An exception in the app gives status 500, as for real clients."""

    def __init__(self, app: FastAPI, token: str | None = None, *, headers: dict[str, str] | None = None,
                 address: str = "127.0.0.1"):  # fmt: skip
        self.app, self.address = app, address
        self.headers = dict(headers or {}) | ({"Authorization": f"Bearer {token}"} if token else {})

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=(self.address, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
                return await client.request(method, path, headers=self.headers, **options)

        return run_async(send)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return self.request("POST", path, json=json, **options)

    def put(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return self.request("PUT", path, json=json, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        return self.request("DELETE", path, **options)


@dataclass(frozen=True, slots=True)
class Person:
    user_id: str
    email: str
    workspace_id: str
    """Id of the person's first workspace, 'default'."""
    key: str
    key_id: str

    def access(self, *, workspace_id: str | None = None, role: Role = Role.OWNER) -> Access:
        principal = Principal(self.user_id, self.email, False, frozenset(ALL_SCOPES), self.key_id)
        return Access(principal, workspace_id or self.workspace_id, "default", role)


def add_person(ctx: Context, email: str, *, is_admin: bool = False) -> Person:
    """Add a person with an account, a workspace and a key with all scopes."""
    token = keys.new_token(keys.KEY_PREFIX)

    def work(session: Session) -> Person:
        user = accounts.add_user(session, email=email, name="", password_hash=None, is_admin=is_admin)
        workspace_id = session.scalars(select(Workspace.id).where(Workspace.owner_id == user.id)).one()
        key = keys.add_key(session, user_id=user.id, name="main", token=token, scopes=ALL_SCOPES)
        return Person(user.id, email, workspace_id, token, key.id)

    return ctx.db.write(work)


def add_member(ctx: Context, workspace_id: str, person: Person, role: Role) -> None:
    ctx.db.write(lambda s: s.add(Member(workspace_id=workspace_id, user_id=person.user_id, role=role)))


def add_key(ctx: Context, person: Person, name: str, *, scopes: list[Scope] | None = None,
            life: timedelta | None = None, revoked: bool = False) -> str:  # fmt: skip
    """Add another key of a person and return it; a negative `life` makes it expired."""
    token = keys.new_token(keys.KEY_PREFIX)

    def work(session: Session) -> None:
        row = keys.add_key(
            session, user_id=person.user_id, name=name, token=token, scopes=scopes or ALL_SCOPES, life=life
        )
        row.revoked_at = utcnow() if revoked else None

    ctx.db.write(work)
    return token


def add_source(ctx: Context, person: Person, text: bytes = b"print('hello')\n") -> str:
    """Add a source with one file, train.py; return its id."""
    access, digest = person.access(), chunk_hash(text)
    chunks.put(ctx, access.workspace_id, b"".join(encode_frames([(digest, text)])))
    entry = FileEntry(path="train.py", size=len(text), chunks=[Chunk(hash=digest, size=len(text))])
    return sources.commit(ctx, access, SourceCommit(manifest=Manifest(files=[entry]))).id


def add_job(ctx: Context, person: Person, name: str = "a-job", *, text: bytes = b"print('hello')\n") -> str:
    """Add a queued job in the person's own workspace that runs a train.py with this text; return its id."""
    spec = JobSpec(name=name, entry=["train.py"], source_id=add_source(ctx, person, text))
    return jobs.submit(ctx, person.access(), spec).id


def add_node(ctx: Context, job_id: str) -> str:
    """Add a first attempt with one node; return the token of its agent."""
    token = keys.new_token("shoala_")

    def work(session: Session) -> None:
        attempt = Attempt(id=new_id("att"), job_id=job_id, number=1, state="starting", num_nodes=1, created_at=utcnow())
        session.add(attempt)
        session.flush()
        node = Node(
            attempt_id=attempt.id, index=0, machine="local", slots=[0], state="pending", token_hash=hash_token(token)
        )
        session.add(node)

    ctx.db.write(work)
    return token
