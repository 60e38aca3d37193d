"""T1: every route × every kind of caller. A route without a row here fails; so does any answer that tells too much.

To add a route, add a row: its policy as it *should* be (written apart from the code's own), and a body that is valid.
"""

import json
import re
import shutil
import string
from dataclasses import dataclass
from datetime import timedelta

import pytest
from authz_rows import ANSWERS, BUG, MEDIUM, PREFLIGHT, ROUTES, RUN, SWARM, SWEEP, W
from sqlalchemy import select, update

from shoal.core.agents import TOKEN_HEADER
from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.bugs import BugCommit
from shoal.core.charts import NoteSave
from shoal.core.checkpoints import CheckpointPush
from shoal.core.datasets import DatasetBegin
from shoal.core.jobs import JobSpec
from shoal.core.leases import LeaseRequest
from shoal.core.metrics import MediaCommit, RunImport
from shoal.core.notices import RuleSave
from shoal.core.people import GitSourceAdd, RegistryConnect, Role, Scope, SecretSet, WorkspaceInvite
from shoal.core.pool import JOIN_HEADER
from shoal.core.runs import RunsViewSave
from shoal.core.schema import utcnow
from shoal.core.snapshots import SnapshotCommit
from shoal.core.swarm import SwarmSpec
from shoal.core.swarm_views import INVITATION_HEADER
from shoal.core.sweeps import SweepSpec
from shoal.server.app import PREFIX, create_app
from shoal.server.artifacts import checkpoints, datasets, media
from shoal.server.charts import marks
from shoal.server.git import service as git
from shoal.server.jobs import bug_capsules, imported_runs
from shoal.server.leases import service as leases
from shoal.server.leases import snapshots
from shoal.server.models.jobs import Attempt, Job
from shoal.server.models.pool import PoolJoin, PoolRow
from shoal.server.models.sources import Source
from shoal.server.models.swarm import Swarm, SwarmCheckpoint, SwarmPeer
from shoal.server.models.sweeps import Sweep
from shoal.server.models.users import SessionRow, User
from shoal.server.notices import rules
from shoal.server.people import invitations as workspace_invitations
from shoal.server.people import secrets
from shoal.server.people.sign_in import start_session
from shoal.server.policy import AgentIdentity, hash_token, routes_of
from shoal.server.preflight import service as preflights
from shoal.server.runs import saved_views
from shoal.server.swarms import service as swarms
from shoal.server.sweeps import service as sweeps
from shoal.testing.each import check_each
from shoal.testing.server import AppClient, add_job, add_key, add_member, add_node, add_person, make_app, make_context

NEVER_SIGNED_IN = ("anonymous", "revoked key", "expired key", "agent", "joiner", "guest", "peer")
PEOPLE = ("viewer", "member", "owner", "read-only key", "other tenant", "job token", "admin")


@dataclass(frozen=True)
class Facts:
    """Ids of the objects of both tenants, so that a copy of their database can be used without reading them again."""

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
    imported = imported_runs.begin(ctx, access, RunImport(**RUN | {"run_id": "thing", "name": "thing"})).job.id
    jobs = add_job(ctx, owner), add_job(ctx, other, text=b"print('another')\n")
    available, upload = (datasets.begin(ctx, access, DatasetBegin(name=name)).id for name in ("thing", "upload"))
    datasets.commit(ctx, access, available, Manifest(files=[]))
    weights = Manifest(files=[FileEntry(path="weights.bin", size=0, chunks=[])])
    checkpoint = checkpoints.push(ctx, access, CheckpointPush(name="thing", manifest=weights)).checkpoint.id
    spec = SWEEP | {"name": "thing", "job": SWEEP["job"] | {"source_id": job_source(ctx, jobs[0])}}
    sweep = sweeps.create(ctx, access, SweepSpec.model_validate(spec)).id
    preflight = preflights.start(
        ctx, access, JobSpec.model_validate(PREFLIGHT | {"source_id": job_source(ctx, jobs[0])})
    ).id
    swarm = swarms.create(
        ctx, access, SwarmSpec.model_validate(SWARM | {"name": "thing", "source_id": job_source(ctx, jobs[0])})
    )
    invite = workspace_invitations.create(ctx, access, WorkspaceInvite()).id
    lease = leases.rent(ctx, access, LeaseRequest(name="thing")).id
    saved_views.save(ctx, access, "thing", RunsViewSave(q="tag:x"))
    rule = rules.add(ctx, access, RuleSave(kind="job_failed")).rule.id
    note = marks.add_note(ctx, access, jobs[0], NoteSave(step=1, text="thing")).id
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
        "joiner": "shoalp_the-token-of-the-test",
        "guest": swarm.invitation.token,
        "peer": "shoalq_the-token-of-the-test",
    }
    add_peer(ctx, swarm, checkpoint, tokens["peer"])
    add_machine(ctx, tokens["joiner"])
    agent = AgentIdentity(jobs[0], first_attempt(ctx, jobs[0]), 1, 0)
    medium = media.commit(ctx, agent, MediaCommit.model_validate(MEDIUM | {"n": 0})).id
    bug = bug_capsules.commit(ctx, agent, BugCommit.model_validate(BUG | {"n": 0})).id
    snapshot = snapshots.capture(ctx, agent, SnapshotCommit(manifest=Manifest(files=[]))).snapshot.id
    attempt = update(Attempt).where(Attempt.job_id == jobs[0])
    ctx.db.write(lambda s: s.execute(attempt.values(read_token_hash=hash_token(tokens["job token"]))) and None)
    with ctx.db.read() as session:
        source = session.scalars(select(Source).where(Source.workspace_id == owner.workspace_id, Source.size > 0)).one()
    chunk = ctx.store.get_manifest(source.manifest_id).files[0].chunks[0].hash
    ids = {"workspace": owner.workspace_id, "key": owner.key_id, "member": owner.user_id, "name": "thing", "host": "thing",
           "job": jobs[0], "hash": chunk, "stream": "log", "dataset": available, "upload": upload, "checkpoint": checkpoint,
           "manifest": source.manifest_id, "source": source.id, "path": "weights.bin",
           "imported": imported, "sweep": sweep, "media_id": medium, "bug": bug, "session": add_session(ctx, owner), "machine": "thing", "user": owner.user_id,
           "engine": "thing", "preflight": preflight, "lease": lease, "snapshot": snapshot,
           "swarm": swarm.swarm.id, "invitation": swarm.invitation.id, "peer": "peer_thing",
           "invite": invite, "view": "thing", "note": str(note), "rule": rule, "page": "job", "service": "thing"}  # fmt: skip
    return Facts(ids, other.workspace_id, tokens)


def add_machine(ctx, join_token):
    now = utcnow()
    row = PoolRow(id="mach_thing", name="thing", via="ssh", asked={"host": "10.0.0.5"}, state="up", kind="cpu", slots=1,
                  facts={}, steps=[], problems=[], created_at=now)  # fmt: skip
    join = PoolJoin(id="join_thing", token_hash=hash_token(join_token), ask={}, address="127.0.0.1", machine_id=None,
                    expires_at=now + timedelta(days=1))  # fmt: skip
    ctx.db.write(lambda session: session.add_all([row, join]))


def add_peer(ctx, swarm, checkpoint, token):
    now, swarm_id = utcnow(), swarm.swarm.id
    row = SwarmPeer(id="peer_thing", swarm_id=swarm_id, invitation_id=swarm.invitation.id, name="thing", public_key="b" * 64,
                    token_hash=hash_token(token), token_expires_at=now + timedelta(days=1), state="training",
                    client_mode=False, facts={}, stats={}, joined_at=now, seen_at=now)  # fmt: skip
    kept = SwarmCheckpoint(checkpoint_id=checkpoint, swarm_id=swarm_id, round=1, hash="h")
    ctx.db.write(lambda session: session.add_all([row, kept]))


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
            kinds = {"joiner": JOIN_HEADER, "guest": INVITATION_HEADER}
            header = TOKEN_HEADER if caller.endswith("agent") else kinds.get(caller)
            known_by = {"headers": {header: token}} if header else {"token": token}
            self.callers[caller] = AppClient(self.app, **known_by)

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

        def work(session):
            session.execute(update(Job).values(state="succeeded", ended_at=Job.created_at))
            session.execute(update(Sweep).values(state="stopped", ended_at=Sweep.created_at))
            session.execute(update(Swarm).values(state="stopped"))

        self.ctx.db.write(work)

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
    """World shared by callers who must not be able to change anything in it."""
    made = opened(template, tmp_path_factory.mktemp("world"))
    made.finish_jobs()
    yield made
    made.ctx.db.close()


def expected(caller, row):
    """The status a caller must get, or None if the policy lets them through."""
    if row.who == "anyone":
        return None
    if row.who in ("agent", "joiner", "guest", "peer"):
        return None if caller == row.who else 401
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


def refused(row):
    """The callers whom the policy of a row keeps out."""
    return [caller for caller in (*NEVER_SIGNED_IN, *PEOPLE) if expected(caller, row) is not None]


LISTS = [
    r
    for r, row in ROUTES.items()
    if r.startswith("GET ") and row.role and not row.foreign and "{" not in r.replace("{workspace}", "")
]
"""Routes that list things of a workspace."""
each_refusing_route = pytest.mark.parametrize("route", [r for r, row in ROUTES.items() if refused(row)])


def test_every_route_has_a_row_and_every_row_a_route(ctx):
    found = [(method, r.path.removeprefix(PREFIX)) for r in routes_of(create_app(ctx)) for method in r.methods]
    routes = {f"{method} {path.replace(':path}', '}')}" for method, path in found}
    assert routes == set(ROUTES), routes ^ set(ROUTES)


def test_every_path_parameter_is_either_foreign_or_knowingly_not():
    """A new `{thing}` in a path must say what another tenant gets for it. A `{path}` is one within the thing, a `{page}` one of the console, a
    `{service}` one of the server's; to an admin,
    every `{user}` of the server is theirs to manage; a view is saved in one's own workspace, whatever others call theirs."""
    for route, row in ROUTES.items():
        names = {name for _, name, _, _ in string.Formatter().parse(route) if name} - {
            "workspace",
            "path",
            "page",
            "service",
        }
        if route == f"PUT {W}/run-views/{{view}}":
            names.remove("view")
        if row.who not in ("agent", "admin", "peer"):
            foreign = {row.foreign} if isinstance(row.foreign, str) else set(row.foreign or ())
            assert names == foreign & names, route


@each_refusing_route
def test_those_who_may_not_are_refused(shared_world, route):
    def check(caller):
        before = shared_world.rows_written()
        answer = shared_world.call(caller, route)
        assert shared_world.rows_written() == before
        assert answer.status_code == expected(caller, ROUTES[route]), answer.text
        assert "hidden" not in answer.text
        assert set(answer.json()) == {"error"}

    check_each(refused(ROUTES[route]), check)


@pytest.mark.parametrize("route", [r for r, row in ROUTES.items() if row.foreign])
def test_another_tenants_things_are_not_found_from_ones_own_place(shared_world, route):
    """The other tenant asks in a workspace they do own, naming things that exist elsewhere."""
    before = shared_world.rows_written()
    answer = shared_world.call("other tenant", route, workspace=shared_world.facts.other_workspace)
    assert shared_world.rows_written() == before
    assert answer.status_code == 404, answer.text
    assert "hidden" not in answer.text


def test_what_is_listed_in_ones_own_place_holds_nothing_of_another_tenants(shared_world):
    """Lists name nothing in their path, so no `foreign` row covers them: a query without its workspace would show all."""
    ids = {i for i in shared_world.facts.ids.values() if "_" in i}

    def check(route):
        answer = shared_world.call("other tenant", route, workspace=shared_world.facts.other_workspace)
        assert answer.status_code == 200, answer.text
        assert not [i for i in ids if i in answer.text], answer.text
        assert "hidden" not in answer.text

    check_each(LISTS, check)


def test_a_job_sees_no_other_workspace_of_the_person_who_submitted_it(world):
    made = world.callers["owner"].post("/workspaces", {"name": "elsewhere"}).json()

    def check(route):
        answer = world.call("job token", route, workspace=made["id"])
        assert answer.status_code == 404, answer.text

    check_each([r for r, row in ROUTES.items() if row.role and row.scope is Scope.READ], check)


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
        else [
            "owner",
            "agent",
            "joiner",
            "guest",
            "peer",
            "read-only key",
            "other tenant",
            "member",
            "viewer",
            "job token",
            "admin",
        ]
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
