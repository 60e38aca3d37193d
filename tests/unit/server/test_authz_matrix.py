"""T1: every route × every kind of caller. A route without a row here fails; so does any answer that tells too much.

To add a route, add a row: its policy as it *should* be (written apart from the code's own), and a body that is valid.
"""

import hashlib
import string
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from shoal.core.agents import TOKEN_HEADER
from shoal.core.people import RegistryConnect, Role, Scope, SecretSet
from shoal.core.people import GitSourceAdd as NamedRepository
from shoal.server.app import PREFIX, create_app
from shoal.server.models import Base
from shoal.server.models.artifacts import Source, WorkspaceChunk
from shoal.server.models.jobs import Job
from shoal.server.policy import routes_of
from shoal.server.services import git, secrets
from shoal.testing.server import AppClient, add_job, add_key, add_member, add_node, add_person, make_context


@dataclass(frozen=True)
class Row:
    """Who may call a route: anyone, agents, people with a scope, or members with a role and a scope."""

    who: str
    role: Role | None = None
    scope: Scope = Scope.READ
    body: Any = None
    params: dict[str, Any] = field(default_factory=dict)
    foreign: str | None = None
    """The part of the path that names a thing of another tenant's."""
    content: bytes | None = None


def public(body=None):
    return Row("anyone", body=body)


def person(scope, body=None, foreign=None):
    return Row("person", scope=scope, body=body, foreign=foreign)


def member(role, scope, body=None, foreign=None, params=None, content=None):
    return Row("member", role=role, scope=scope, body=body, foreign=foreign, params=params or {}, content=content)


def agent(body=None, params=None, content=None):
    return Row("agent", body=body, params=params or {}, content=content)


VIEW = (Role.VIEWER, Scope.READ)
WORK = (Role.MEMBER, Scope.WRITE)
OWN = (Role.OWNER, Scope.ADMIN)
W = "/workspaces/{workspace}"
PASSWORD = "long enough, this"
JOIN = {"pid": 1, "boot_id": "b", "host": "h", "address": "127.0.0.1", "port": 1}

ROUTES = {
    "GET /health": public(),
    "POST /auth/sign-up": public({"email": "new@example.org", "password": PASSWORD}),
    "POST /auth/sign-in": public({"email": "new@example.org", "password": PASSWORD}),
    "POST /auth/sign-out": person(Scope.READ),
    "POST /auth/password": person(Scope.ADMIN, {"old_password": PASSWORD, "new_password": PASSWORD}),
    "GET /auth/me": person(Scope.READ),
    "GET /keys": person(Scope.READ),
    "POST /keys": person(Scope.ADMIN, {"name": "another", "scopes": ["read"]}),
    "DELETE /keys/{key}": person(Scope.ADMIN, foreign="key"),
    "GET /machines": person(Scope.READ),
    "GET /workspaces": person(Scope.READ),
    "POST /workspaces": person(Scope.ADMIN, {"name": "another"}),
    f"DELETE {W}": member(*OWN),
    f"GET {W}/members": member(*VIEW),
    f"PUT {W}/members": member(*OWN, {"email": "member@example.org", "role": "viewer"}),
    f"DELETE {W}/members/{{member}}": member(Role.VIEWER, Scope.ADMIN, foreign="member"),
    f"GET {W}/secrets": member(*VIEW),
    f"PUT {W}/secrets": member(*WORK, {"name": "s2", "value": "v"}),
    f"DELETE {W}/secrets/{{name}}": member(*WORK, foreign="name"),
    f"GET {W}/registries": member(*VIEW),
    f"PUT {W}/registries": member(*WORK, {"host": "h2", "token": "t"}),
    f"DELETE {W}/registries/{{host}}": member(*WORK, foreign="host"),
    f"GET {W}/git-sources": member(*VIEW),
    f"POST {W}/git-sources": member(*WORK, {"name": "g2", "url": "https://github.com/a/b"}),
    f"DELETE {W}/git-sources/{{name}}": member(*WORK, foreign="name"),
    f"POST {W}/sources": member(*WORK, {"manifest": {"files": []}}),
    f"POST {W}/sources/git": member(*WORK, {"url": "ext::never"}),
    f"POST {W}/store/missing": member(*WORK, {"hashes": []}),
    f"POST {W}/store/chunks": member(*WORK, content=b""),
    f"GET {W}/store/chunks/{{hash}}": member(*VIEW, foreign="hash"),
    f"POST {W}/jobs": member(*WORK, {"name": "j2", "entry": ["train.py"], "source_id": "<source>"}, foreign="source_id"),
    f"GET {W}/jobs": member(*VIEW),
    f"GET {W}/jobs/{{job}}": member(*VIEW, foreign="job"),
    f"DELETE {W}/jobs/{{job}}": member(*WORK, foreign="job"),
    f"POST {W}/jobs/{{job}}/stop": member(*WORK, foreign="job"),
    f"GET {W}/jobs/{{job}}/logs": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/follow": member(*VIEW, foreign="job"),
    "POST /agent/join": agent(JOIN),
    "POST /agent/beat": agent({"state": "preparing"}),
    "POST /agent/segments/{stream}": agent(params={"seq_first": 0, "count": 1}, content=b"not zstd"),
    "GET /agent/chunks/{hash}": agent(),
}  # fmt: skip

ANSWERS = {
    "POST /auth/sign-in": 401,  # nobody has that password
    "POST /auth/sign-out": 409,  # a key has no session
    "POST /auth/password": 409,  # nor a password
    f"DELETE {W}/members/{{member}}": 409,  # the last owner stays
    f"POST {W}/sources/git": 422,  # not a URL to fetch from
    "POST /agent/segments/{stream}": 422,  # not zstd
}
"""Where the right answer to one who may is not a success."""

HELD_UP_LATER = {
    *((caller, "POST /auth/sign-in") for caller in ("anonymous", "revoked key", "expired key", "agent", "viewer", "member",
                                                    "read-only key", "other tenant")),
    *((caller, "POST /auth/sign-up") for caller in ("anonymous", "revoked key", "expired key", "agent", "viewer", "member",
                                                    "read-only key", "other tenant")),
    *((caller, f"DELETE {W}/members/{{member}}") for caller in ("viewer", "member")),
}  # fmt: skip
"""Let through by the policy, refused by the service: a wrong password, a closed sign-up, someone else's membership."""

NEVER_SIGNED_IN = ("anonymous", "revoked key", "expired key", "agent")
PEOPLE = ("viewer", "member", "owner", "read-only key", "other tenant")


class World:
    """A tenant with one of everything, people of every kind around it, and a second tenant who must see none of it."""

    def __init__(self, home):
        self.ctx = ctx = make_context(home, private=False)
        self.app = create_app(ctx)
        self.owner = add_person(ctx, "owner@example.org")
        self.other = add_person(ctx, "other@example.org")
        people = {role: add_person(ctx, f"{role}@example.org") for role in ("viewer", "member")}
        for role, someone in people.items():
            add_member(ctx, self.owner.workspace_id, someone, Role(role))
        access = self.owner.access()
        secrets.set_secret(ctx, access, SecretSet(name="thing", value="hidden-value"))
        git.connect_registry(ctx, access, RegistryConnect(host="thing", token="hidden-token"))
        git.add_git_source(ctx, access, NamedRepository(name="thing", url="https://github.com/a/b"))
        self.job = add_job(ctx, self.owner)
        self.agent_token = add_node(ctx, self.job)
        with ctx.db.read() as session:
            self.source = session.scalars(select(Source.id)).one()
            chunk = session.scalars(select(WorkspaceChunk.hash)).one().hex()
        self.ids = {"workspace": self.owner.workspace_id, "key": self.owner.key_id, "member": self.owner.user_id,
                    "name": "thing", "host": "thing", "job": self.job, "hash": chunk, "stream": "log"}  # fmt: skip
        self.callers = {
            "anonymous": AppClient(self.app),
            "revoked key": AppClient(self.app, add_key(ctx, self.owner, "revoked", revoked=True)),
            "expired key": AppClient(self.app, add_key(ctx, self.owner, "expired", life=timedelta(seconds=-1))),
            "agent": AppClient(self.app, headers={TOKEN_HEADER: self.agent_token}),
            "viewer": AppClient(self.app, people["viewer"].key),
            "member": AppClient(self.app, people["member"].key),
            "owner": AppClient(self.app, self.owner.key),
            "read-only key": AppClient(self.app, add_key(ctx, self.owner, "narrow", scopes=[Scope.READ])),
            "other tenant": AppClient(self.app, self.other.key),
        }

    def call(self, caller, route, **ids):
        row, (method, template) = ROUTES[route], route.split(" ")
        path = template.format(**self.ids | ids)
        options = {"params": row.params, "json": row.body, "content": row.content}
        if isinstance(row.body, dict) and row.body.get("source_id") == "<source>":
            options["json"] = row.body | {"source_id": self.source}
        options = {key: value for key, value in options.items() if value is not None}
        return self.callers[caller].request(method, path, **options)

    def finish_jobs(self):
        """A finished job may be deleted, and followed to its end."""
        ended = update(Job).values(state="succeeded", ended_at=Job.created_at)
        self.ctx.db.write(lambda s: s.execute(ended) and None)

    def fingerprint(self):
        digest = hashlib.sha256()
        with self.ctx.db.read() as session:
            for table in Base.metadata.sorted_tables:
                digest.update(repr((table.name, sorted(map(repr, session.execute(table.select()))))).encode())
        return digest.hexdigest()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.ctx.db.close()


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory):
    """For callers who must not be able to change anything in it; checked when all are done."""
    made = World(tmp_path_factory.mktemp("world"))
    made.finish_jobs()
    before = made.fingerprint()
    yield made
    assert made.fingerprint() == before, "a refused request has changed the database"
    made.ctx.db.close()


def expected(caller, row):
    """The status a caller must get, or None if the policy lets them through."""
    if row.who == "anyone":
        return None
    if row.who == "agent":
        return None if caller == "agent" else 401
    if caller in NEVER_SIGNED_IN:
        return 401
    if row.who == "member" and caller == "other tenant":
        return 404
    if caller == "read-only key" and row.scope is not Scope.READ:
        return 403
    if row.who == "member" and caller in ("viewer", "member") and not Role(caller).covers(row.role):
        return 403
    return None


REFUSED = [(c, r) for r, row in ROUTES.items() for c in (*NEVER_SIGNED_IN, *PEOPLE) if expected(c, row) is not None]


def test_every_route_has_a_row_and_every_row_a_route(ctx):
    routes = {f"{method} {r.path.removeprefix(PREFIX)}" for r in routes_of(create_app(ctx)) for method in r.methods}
    assert routes == set(ROUTES)


def test_every_path_parameter_is_either_foreign_or_knowingly_not():
    """A new `{thing}` in a path must say what another tenant gets for it."""
    for route, row in ROUTES.items():
        names = {name for _, name, _, _ in string.Formatter().parse(route) if name} - {"workspace"}
        if row.who != "agent":
            assert names == ({row.foreign} & names), route


@pytest.mark.parametrize(("caller", "route"), REFUSED, ids=lambda v: str(v).replace("/workspaces/{workspace}", "W"))
def test_those_who_may_not_are_refused(shared_world, caller, route):
    answer = shared_world.call(caller, route)
    assert answer.status_code == expected(caller, ROUTES[route]), answer.text
    assert "hidden" not in answer.text
    assert set(answer.json()) == {"error"}


@pytest.mark.parametrize("route", [r for r, row in ROUTES.items() if row.foreign])
def test_another_tenants_things_are_not_found_from_ones_own_place(shared_world, route):
    """The other tenant asks in a workspace they do own, naming things that exist elsewhere."""
    answer = shared_world.call("other tenant", route, workspace=shared_world.other.workspace_id)
    assert answer.status_code == 404, answer.text
    assert "hidden" not in answer.text


@pytest.mark.parametrize("route", [r for r, row in ROUTES.items() if row.role])
def test_a_foreign_workspace_answers_like_one_that_does_not_exist(shared_world, route):
    foreign = shared_world.call("other tenant", route)
    absent = shared_world.call("other tenant", route, workspace="ws_00000000000000000000000000")
    assert foreign.status_code == absent.status_code == 404
    ids = (shared_world.ids["workspace"], "ws_00000000000000000000000000")
    assert foreign.text.replace(ids[0], "X") == absent.text.replace(ids[1], "X")


@pytest.mark.parametrize("route", ROUTES)
def test_those_who_may_are_let_through(world, route):
    """No row is too strict: the first who may gets what they ask for, and the policy holds up none of the others."""
    row = ROUTES[route]
    allowed = [c for c in ("owner", "agent", *PEOPLE, *NEVER_SIGNED_IN) if expected(c, row) is None]
    if not route.endswith("/stop") and row.who != "agent":
        world.finish_jobs()
    first = world.call(allowed[0], route)
    assert first.status_code == ANSWERS.get(route, first.status_code if first.is_success else 200), first.text
    for caller in allowed[1:]:
        answer = world.call(caller, route)
        assert answer.status_code not in (401, 403, 500) or (caller, route) in HELD_UP_LATER, (caller, answer.text)
