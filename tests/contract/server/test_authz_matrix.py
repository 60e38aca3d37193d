"""T1: every route × every kind of caller. A route without a row here fails; so does any answer that tells too much.

To add a route, add a row: its policy as it *should* be (written apart from the code's own), and a body that is valid.
"""

import json
import re
import shutil
import string
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from shoal.core.agents import TOKEN_HEADER
from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.bugs import BugCommit
from shoal.core.checkpoints import CheckpointPush
from shoal.core.datasets import DatasetBegin
from shoal.core.metrics import MediaCommit, RunImport
from shoal.core.people import GitSourceAdd, RegistryConnect, Role, Scope, SecretSet
from shoal.core.sweeps import SweepSpec
from shoal.server.app import PREFIX, create_app
from shoal.server.models.artifacts import Source
from shoal.server.models.jobs import Attempt, Job
from shoal.server.models.people import SessionRow, User
from shoal.server.models.sweeps import Sweep
from shoal.server.policy import AgentIdentity, hash_token, routes_of
from shoal.server.services import bugs, checkpoints, datasets, git, media, runs, secrets, sweeps
from shoal.server.services.people import start_session
from shoal.testing.server import AppClient, add_job, add_key, add_member, add_node, add_person, make_app, make_context


@dataclass(frozen=True)
class Row:
    """Who may call a route: anyone, agents, admins, people with a scope, or members with a role and a scope."""

    who: str
    role: Role | None = None
    scope: Scope = Scope.READ
    body: Any = None
    params: dict[str, Any] = field(default_factory=dict)
    foreign: str | tuple[str, ...] | None = None
    """The part (or parts) of the path or body that names a thing of another tenant's."""
    content: bytes | None = None
    use: dict[str, str] = field(default_factory=dict)
    """Which of the world's things a path parameter stands for, where it is not the one of its own name."""


def public(body=None):
    return Row("anyone", body=body)


def person(scope, body=None, foreign=None):
    return Row("person", scope=scope, body=body, foreign=foreign)


def admin(body=None):
    return Row("admin", scope=Scope.ADMIN, body=body)


def member(role, scope, body=None, foreign=None, **more):
    return Row("member", role=role, scope=scope, body=body, foreign=foreign, **more)


def agent(body=None, **more):
    return Row("agent", body=body, **more)


VIEW = (Role.VIEWER, Scope.READ)
WORK = (Role.MEMBER, Scope.WRITE)
OWN = (Role.OWNER, Scope.ADMIN)
W = "/workspaces/{workspace}"
PASSWORD = "long enough, this"
EMPTY = {"files": []}
UPLOAD = {"dataset": "upload"}
JOIN = {"pid": 1, "boot_id": "b", "host": "h", "address": "127.0.0.1", "port": 1}
RUN = {"run_id": "another", "name": "another", "created": "2026-01-31T12:00:00Z"}
IMPORTED = {"job": "imported"}
MEDIUM = {
    "rank": 0, "n": 9, "t": 1.0, "step": 1, "name": "m", "type": "image", "manifest": {"files": [{"path": "m.png", "size": 0, "chunks": []}]},
}  # fmt: skip
SWEEP = {
    "name": "s2", "job": {"name": "s2", "entry": ["train.py"], "source_id": "<source>"}, "space": {"lr": {"kind": "choice", "values": [1]}},
}  # fmt: skip
BUG = {"rank": 0, "n": 9, "t": 1.0, "step": 1, "name": "step-1-rank-0", "error": "E", "manifest": EMPTY}

ROUTES = {
    "GET /health": public(),
    "POST /auth/sign-up": public({"email": "new@example.org", "password": PASSWORD}),
    "POST /auth/sign-in": public({"email": "new@example.org", "password": PASSWORD}),
    "POST /auth/sign-out": person(Scope.READ),
    "POST /auth/password": person(Scope.ADMIN, {"old_password": PASSWORD, "new_password": PASSWORD}),
    "GET /auth/me": person(Scope.READ),
    "PATCH /auth/me": person(Scope.ADMIN, {"name": "Another"}),
    "GET /auth/sessions": person(Scope.READ),
    "DELETE /auth/sessions": person(Scope.ADMIN),
    "DELETE /auth/sessions/{session}": person(Scope.ADMIN, foreign="session"),
    "GET /admin/users": admin(),
    "POST /admin/users": admin({"email": "new@example.org", "password": PASSWORD}),
    "PATCH /admin/users/{user}": admin({"is_admin": True}),
    "PUT /admin/users/{user}/password": admin({"password": PASSWORD}),
    "GET /admin/limits": admin(),
    "PATCH /admin/limits": admin({"max_source_mb": 100}),
    "GET /keys": person(Scope.READ),
    "POST /keys": person(Scope.ADMIN, {"name": "another", "scopes": ["read"]}),
    "DELETE /keys/{key}": person(Scope.ADMIN, foreign="key"),
    "GET /store/usage": admin(),
    "POST /store/check": admin(),
    "POST /store/gc": admin(),
    "GET /machines": person(Scope.READ),
    "GET /workspaces": person(Scope.READ),
    "POST /workspaces": person(Scope.ADMIN, {"name": "another"}),
    f"PATCH {W}": member(*OWN, {"name": "renamed"}),
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
    f"POST {W}/sources": member(*WORK, {"manifest": EMPTY}),
    f"POST {W}/sources/git": member(*WORK, {"url": "ext::never"}),
    f"POST {W}/sources/notebook": member(*WORK, {"url": "ftp://never"}),
    f"GET {W}/sources/{{source}}/receipt": member(*VIEW, foreign="source"),
    f"POST {W}/store/missing": member(*WORK, {"hashes": []}),
    f"POST {W}/store/chunks": member(*WORK, content=b""),
    f"GET {W}/store/chunks/{{hash}}": member(*VIEW, foreign="hash"),
    f"POST {W}/store/fetch": member(*VIEW, {"hashes": ["<hash>"]}, foreign="hashes"),
    f"GET {W}/datasets": member(*VIEW),
    f"POST {W}/datasets": member(*WORK, {"name": "d2"}),
    f"GET {W}/datasets/{{dataset}}": member(*VIEW, foreign="dataset"),
    f"DELETE {W}/datasets/{{dataset}}": member(*WORK, foreign="dataset", use={"dataset": "name"}),
    f"GET {W}/datasets/{{dataset}}/files": member(*VIEW, foreign="dataset"),
    f"GET {W}/datasets/{{dataset}}/manifest": member(*VIEW, foreign="dataset"),
    f"PUT {W}/datasets/{{dataset}}/manifest": member(*WORK, foreign="dataset", use=UPLOAD, content=json.dumps(EMPTY).encode()),
    f"POST {W}/datasets/{{dataset}}/fail": member(*WORK, {"error": "no"}, foreign="dataset", use=UPLOAD),
    f"POST {W}/datasets/import": member(*WORK, {"name": "d3", "url": "ftp://never"}),
    f"POST {W}/checkpoints/{{checkpoint}}/export": member(*WORK, {"destination": "ftp://never"}, foreign="checkpoint"),
    f"GET {W}/checkpoints": member(*VIEW),
    f"POST {W}/checkpoints": member(*WORK, {"name": "c2", "manifest": EMPTY}),
    f"GET {W}/checkpoints/{{checkpoint}}": member(*VIEW, foreign="checkpoint"),
    f"DELETE {W}/checkpoints/{{checkpoint}}": member(*WORK, foreign="checkpoint"),
    f"GET {W}/checkpoints/{{checkpoint}}/manifest": member(*VIEW, foreign="checkpoint"),
    f"GET {W}/checkpoints/{{checkpoint}}/archive": member(*VIEW, foreign="checkpoint"),
    f"GET {W}/checkpoints/{{checkpoint}}/files/{{path}}": member(*VIEW, foreign="checkpoint"),
    f"POST {W}/checkpoints/{{checkpoint}}/keep": member(*WORK, {"keep": True}, foreign="checkpoint"),
    f"POST {W}/jobs": member(*WORK, {"name": "j2", "entry": ["train.py"], "source_id": "<source>"}, foreign="source_id"),
    f"GET {W}/jobs": member(*VIEW),
    f"GET {W}/jobs/{{job}}": member(*VIEW, foreign="job"),
    f"DELETE {W}/jobs/{{job}}": member(*WORK, foreign="job"),
    f"POST {W}/jobs/{{job}}/stop": member(*WORK, foreign="job"),
    f"POST {W}/jobs/{{job}}/resume": member(*WORK, foreign="job"),
    f"GET {W}/jobs/{{job}}/why": member(*VIEW, foreign="job"),
    f"PATCH {W}/jobs/{{job}}": member(*WORK, {"priority": 1}, foreign="job"),
    f"POST {W}/queue/simulate": member(*VIEW, {}),
    "GET /queue": person(Scope.READ),
    "GET /admin/quotas": admin(),
    "PATCH /admin/quotas/{target}": Row("admin", scope=Scope.ADMIN, body={"slots": 4}, use={"target": "workspace"}),
    f"POST {W}/sweeps": member(*WORK, SWEEP, foreign="job"),
    f"GET {W}/sweeps": member(*VIEW),
    f"GET {W}/sweeps/{{sweep}}": member(*VIEW, foreign="sweep"),
    f"GET {W}/sweeps/{{sweep}}/trials": member(*VIEW, foreign="sweep"),
    f"POST {W}/sweeps/{{sweep}}/stop": member(*WORK, foreign="sweep"),
    f"POST {W}/sweeps/{{sweep}}/rerun": member(*WORK, foreign="sweep"),
    f"DELETE {W}/sweeps/{{sweep}}": member(*WORK, foreign="sweep"),
    "GET /billing/prices": person(Scope.READ),
    "GET /billing/usage": person(Scope.READ),
    "GET /admin/billing/usage": admin(),
    "GET /admin/billing/verify": admin(),
    f"GET {W}/billing/usage": member(*VIEW),
    f"GET {W}/billing/verify": member(*VIEW),
    f"POST {W}/quotes": member(*VIEW, {"entry": ["train.py"], "source_id": "<source>"}, foreign="source_id"),
    f"GET {W}/jobs/{{job}}/checkpoint-archive": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/share": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/logs": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/follow": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/metrics": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/metric-names": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/media": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/media/{{media_id}}": member(*VIEW, foreign=("job", "media_id")),
    f"GET {W}/jobs/{{job}}/bugs": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/bugs/{{bug}}/manifest": member(*VIEW, foreign=("job", "bug")),
    f"GET {W}/jobs/{{job}}/source/manifest": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/ledger": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/config": member(*VIEW, foreign="job"),
    f"POST {W}/imports": member(*WORK, RUN),
    f"POST {W}/jobs/{{job}}/import/segments/{{stream}}": member(*WORK, foreign=("job", "stream"), use=IMPORTED, content=b"not zstd", params={"part": "a", "seq_first": 0, "count": 1}),
    f"POST {W}/jobs/{{job}}/import/checkpoints": member(*WORK, {"name": "c", "manifest": EMPTY}, foreign="job", use=IMPORTED),
    f"POST {W}/jobs/{{job}}/import/media": member(*WORK, MEDIUM, foreign="job", use=IMPORTED),
    f"POST {W}/jobs/{{job}}/import/bugs": member(*WORK, BUG, foreign="job", use=IMPORTED),
    f"POST {W}/jobs/{{job}}/import/state": member(*WORK, {"status": "stopped"}, foreign="job", use=IMPORTED),
    "POST /agent/join": agent(JOIN),
    "POST /agent/beat": agent({"state": "preparing"}),
    "POST /agent/segments/{stream}": agent(params={"seq_first": 0, "count": 1}, content=b"not zstd"),
    "GET /agent/manifests/{manifest}": agent(),
    "GET /agent/chunks/{hash}": agent(),
    "POST /agent/chunks": agent(content=b""),
    "POST /agent/checkpoints": agent({"name": "c", "manifest": EMPTY}),
    "POST /agent/media": agent(MEDIUM),
    "POST /agent/bugs": agent(BUG),
}  # fmt: skip

ANSWERS = {
    "POST /auth/sign-in": 401,  # nobody has that password
    "POST /auth/sign-out": 409,  # a key has no session
    "POST /auth/password": 409,  # nor a password
    f"DELETE {W}/members/{{member}}": 409,  # the last owner stays
    f"POST {W}/datasets/import": 422,  # not a URL to fetch from
    f"POST {W}/checkpoints/{{checkpoint}}/export": 422,  # not a place to write to
    f"POST {W}/sources/git": 422,  # not a URL to fetch from
    f"POST {W}/sources/notebook": 422,
    f"GET {W}/sources/{{source}}/receipt": 404,  # it was not made of a notebook
    f"POST {W}/jobs/{{job}}/resume": 409,  # it succeeded
    f"PATCH {W}/jobs/{{job}}": 409,  # nor does it wait
    f"GET {W}/jobs/{{job}}/checkpoint-archive": 404,  # it wrote none
    "POST /agent/segments/{stream}": 422,  # not zstd
    f"POST {W}/jobs/{{job}}/import/segments/{{stream}}": 422,
}
"""Where the right answer to one who may is not a success."""

NEVER_SIGNED_IN = ("anonymous", "revoked key", "expired key", "agent")
PEOPLE = ("viewer", "member", "owner", "read-only key", "other tenant", "job token", "admin")


@dataclass(frozen=True)
class Facts:
    """What is in the tenants' world, so that a copy of its database can be used without asking it."""

    ids: dict[str, str]
    other_workspace: str
    tokens: dict[str, str]


def populate(ctx):
    """A tenant with one of everything, people of every kind around it, and a second tenant who must see none of it."""
    owner, other = add_person(ctx, "owner@example.org"), add_person(ctx, "other@example.org")
    people = {role: add_person(ctx, f"{role}@example.org") for role in ("viewer", "member")}
    for role, someone in people.items():
        add_member(ctx, owner.workspace_id, someone, Role(role))
    access = owner.access()
    secrets.set_secret(ctx, access, SecretSet(name="thing", value="hidden-value"))
    git.connect_registry(ctx, access, RegistryConnect(host="thing", token="hidden-token"))
    git.add_git_source(ctx, access, GitSourceAdd(name="thing", url="https://github.com/a/b"))
    imported = runs.begin(ctx, access, RunImport(**RUN | {"run_id": "thing", "name": "thing"})).job.id
    jobs = add_job(ctx, owner), add_job(ctx, other, text=b"print('another')\n")
    available, upload = (datasets.begin(ctx, access, DatasetBegin(name=name)).id for name in ("thing", "upload"))
    datasets.commit(ctx, access, available, Manifest(files=[]))
    weights = Manifest(files=[FileEntry(path="weights.bin", size=0, chunks=[])])
    checkpoint = checkpoints.push(ctx, access, CheckpointPush(name="thing", manifest=weights)).checkpoint.id
    spec = SWEEP | {"name": "thing", "job": SWEEP["job"] | {"source_id": job_source(ctx, jobs[0])}}
    sweep = sweeps.create(ctx, access, SweepSpec.model_validate(spec)).id
    tokens = {
        "revoked key": add_key(ctx, owner, "revoked", revoked=True),
        "expired key": add_key(ctx, owner, "expired", life=timedelta(seconds=-1)),
        "agent": add_node(ctx, jobs[0]),
        "other tenant's agent": add_node(ctx, jobs[1]),
        "viewer": people["viewer"].key,
        "member": people["member"].key,
        "owner": owner.key,
        "read-only key": add_key(ctx, owner, "narrow", scopes=[Scope.READ]),
        "other tenant": other.key,
        "admin": add_person(ctx, "admin@example.org", is_admin=True).key,
        "job token": "shoalj_the-token-of-the-test",
    }
    agent = AgentIdentity(jobs[0], first_attempt(ctx, jobs[0]), 1, 0)
    medium = media.commit(ctx, agent, MediaCommit.model_validate(MEDIUM | {"n": 0})).id
    bug = bugs.commit(ctx, agent, BugCommit.model_validate(BUG | {"n": 0})).id
    attempt = update(Attempt).where(Attempt.job_id == jobs[0])
    ctx.db.write(lambda s: s.execute(attempt.values(read_token_hash=hash_token(tokens["job token"]))) and None)
    with ctx.db.read() as session:
        source = session.scalars(select(Source).where(Source.workspace_id == owner.workspace_id, Source.size > 0)).one()
    chunk = ctx.store.get_manifest(source.manifest_id).files[0].chunks[0].hash
    ids = {"workspace": owner.workspace_id, "key": owner.key_id, "member": owner.user_id, "name": "thing", "host": "thing",
           "job": jobs[0], "hash": chunk, "stream": "log", "dataset": available, "upload": upload, "checkpoint": checkpoint,
           "manifest": source.manifest_id, "source": source.id, "path": "weights.bin",
           "imported": imported, "sweep": sweep, "media_id": medium, "bug": bug, "session": add_session(ctx, owner), "user": owner.user_id}  # fmt: skip
    return Facts(ids, other.workspace_id, tokens)


def add_session(ctx, person):
    def work(session):
        start_session(session, session.get_one(User, person.user_id))
        return session.scalars(select(SessionRow.id).where(SessionRow.user_id == person.user_id)).one()

    return ctx.db.write(work)


def job_source(ctx, job_id):
    with ctx.db.read() as session:
        return session.get_one(Job, job_id).source_id


def first_attempt(ctx, job_id):
    with ctx.db.read() as session:
        return session.scalars(select(Attempt.id).where(Attempt.job_id == job_id)).one()


class World:
    def __init__(self, ctx, facts):
        self.ctx, self.facts, self.app = ctx, facts, make_app(ctx)
        self.callers = {"anonymous": AppClient(self.app)}
        for caller, token in facts.tokens.items():
            as_agent = {"token": None, "headers": {TOKEN_HEADER: token}}
            self.callers[caller] = AppClient(self.app, **as_agent if caller.endswith("agent") else {"token": token})

    def call(self, caller, route, **ids):
        row, (method, template) = ROUTES[route], route.split(" ")
        known = self.facts.ids | ids
        path = template.format(**known | {name: known[thing] for name, thing in row.use.items()})
        options = {"params": row.params, "content": row.content}
        if row.body is not None:
            options["json"] = json.loads(re.sub(r"<(\w+)>", lambda m: known[m[1]], json.dumps(row.body)))
        return self.callers[caller].request(method, path, **options)

    def finish_jobs(self):
        """A finished job may be deleted, and followed to its end."""
        ended = update(Job).values(state="succeeded", ended_at=Job.created_at)
        self.ctx.db.write(lambda s: s.execute(ended) and None)
        over = update(Sweep).values(state="stopped", ended_at=Sweep.created_at)
        self.ctx.db.write(lambda s: s.execute(over) and None)

    def rows_written(self):
        """Rows ever inserted, changed or deleted through this server."""
        with self.ctx.db.writer.connect() as connection:
            return connection.connection.driver_connection.total_changes


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    home = tmp_path_factory.mktemp("template")
    ctx = make_context(home, private=False)
    facts = populate(ctx)
    ctx.db.close()
    return home, facts


def opened(template, home):
    shutil.copytree(template[0], home, dirs_exist_ok=True)
    return World(make_context(home, private=False), template[1])


@pytest.fixture
def world(template, tmp_path):
    made = opened(template, tmp_path)
    yield made
    made.ctx.db.close()


@pytest.fixture(scope="module")
def shared_world(template, tmp_path_factory):
    """For callers who must not be able to change anything in it."""
    made = opened(template, tmp_path_factory.mktemp("world"))
    made.finish_jobs()
    yield made
    made.ctx.db.close()


def expected(caller, row):
    """The status a caller must get, or None if the policy lets them through."""
    if row.who == "anyone":
        return None
    if row.who == "agent":
        return None if caller == "agent" else 401
    if caller in NEVER_SIGNED_IN:
        return 401
    if row.who == "admin":
        return None if caller == "admin" else 403
    if row.who == "member" and caller in ("other tenant", "admin"):
        return 404  # an admin runs the server, and still sees only what they are a member of
    if caller == "job token" and row.who == "person":
        return 403
    if caller in ("read-only key", "job token") and row.scope is not Scope.READ:
        return 403
    if row.who == "member" and caller in ("viewer", "member") and not Role(caller).covers(row.role):
        return 403
    return None


REFUSED = [(c, r) for r, row in ROUTES.items() for c in (*NEVER_SIGNED_IN, *PEOPLE) if expected(c, row) is not None]


def test_every_route_has_a_row_and_every_row_a_route(ctx):
    found = [(method, r.path.removeprefix(PREFIX)) for r in routes_of(create_app(ctx)) for method in r.methods]
    routes = {f"{method} {path.replace(':path}', '}')}" for method, path in found}
    assert routes == set(ROUTES), routes ^ set(ROUTES)


def test_every_path_parameter_is_either_foreign_or_knowingly_not():
    """A new `{thing}` in a path must say what another tenant gets for it. A `{path}` is one within the thing; to an admin,
    every `{user}` of the server is theirs to manage."""
    for route, row in ROUTES.items():
        names = {name for _, name, _, _ in string.Formatter().parse(route) if name} - {"workspace", "path"}
        if row.who not in ("agent", "admin"):
            foreign = {row.foreign} if isinstance(row.foreign, str) else set(row.foreign or ())
            assert names == foreign & names, route


@pytest.mark.parametrize(("caller", "route"), REFUSED, ids=lambda v: str(v).replace("/workspaces/{workspace}", "W"))
def test_those_who_may_not_are_refused(shared_world, caller, route):
    before = shared_world.rows_written()
    answer = shared_world.call(caller, route)
    assert shared_world.rows_written() == before
    assert answer.status_code == expected(caller, ROUTES[route]), answer.text
    assert "hidden" not in answer.text
    assert set(answer.json()) == {"error"}


@pytest.mark.parametrize("route", [r for r, row in ROUTES.items() if row.foreign])
def test_another_tenants_things_are_not_found_from_ones_own_place(shared_world, route):
    """The other tenant asks in a workspace they do own, naming things that exist elsewhere."""
    before = shared_world.rows_written()
    answer = shared_world.call("other tenant", route, workspace=shared_world.facts.other_workspace)
    assert shared_world.rows_written() == before
    assert answer.status_code == 404, answer.text
    assert "hidden" not in answer.text


@pytest.mark.parametrize("route", [r for r, row in ROUTES.items() if row.role and row.scope is Scope.READ])
def test_a_job_sees_no_other_workspace_of_the_person_who_submitted_it(world, route):
    made = world.callers["owner"].post("/workspaces", {"name": "elsewhere"}).json()
    assert world.call("job token", route, workspace=made["id"]).status_code == 404


@pytest.mark.parametrize("route", ["GET /agent/manifests/{manifest}", "GET /agent/chunks/{hash}"])
def test_an_agent_reads_its_own_jobs_things_and_no_others(shared_world, route):
    assert shared_world.call("agent", route).status_code == 200
    assert shared_world.call("other tenant's agent", route).status_code == 404


@pytest.mark.parametrize("route", [r for r, row in ROUTES.items() if row.role])
def test_a_foreign_workspace_answers_like_one_that_does_not_exist(shared_world, route):
    foreign = shared_world.call("other tenant", route)
    absent = shared_world.call("other tenant", route, workspace="ws_00000000000000000000000000")
    assert foreign.status_code == absent.status_code == 404
    ids = (shared_world.facts.ids["workspace"], "ws_00000000000000000000000000")
    assert foreign.text.replace(ids[0], "X") == absent.text.replace(ids[1], "X")


@pytest.mark.parametrize("route", ROUTES)
def test_those_who_may_are_let_through(world, route):
    """No row is too strict: the first who may gets what they ask for, and the policy holds up none of the others."""
    row = ROUTES[route]
    if not route.endswith("/stop") and row.who != "agent":
        world.finish_jobs()
    callers = (
        ["anonymous"]
        if row.who == "anyone"
        else ["owner", "agent", "read-only key", "other tenant", "member", "viewer", "job token", "admin"]
    )
    first, *others = [caller for caller in callers if expected(caller, row) is None]
    answer = world.call(first, route)
    assert answer.status_code == ANSWERS.get(route, 0) or (route not in ANSWERS and answer.is_success), answer.text
    if row.foreign == "member":
        return  # the service, not the policy, tells leaving from being removed
    for caller in others:
        assert world.call(caller, route).status_code not in (401, 403, 500), caller


def test_naming_another_tenants_chunk_in_a_checkpoint_does_not_make_it_ones_own(world):
    """An agent's token is within reach of the code it runs: a hash alone must not give that code another's bytes."""
    hash_ = world.facts.ids["hash"]
    size = len(world.ctx.store.get(hash_))
    manifest = {"files": [{"path": "stolen", "size": size, "chunks": [{"hash": hash_, "size": size}]}]}
    answer = world.callers["other tenant's agent"].post("/agent/checkpoints", {"name": "c", "manifest": manifest})
    assert answer.json()["missing"] == [hash_]
    path = f"/workspaces/{world.facts.other_workspace}/store/chunks/{hash_}"
    assert world.callers["other tenant"].get(path).status_code == 404
