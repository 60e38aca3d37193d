"""The pool for its admins: what is refused and why, what a token opens, and what a machine is given."""

import ast
import base64
import hashlib
import subprocess
import zipfile
from datetime import timedelta
from io import BytesIO

import pytest
from sqlalchemy import select

from shoal.core.errors import NotSignedIn
from shoal.core.pool import JOIN_HEADER, JoinCommandRequest, PoolAdd
from shoal.core.schema import utcnow
from shoal.core.settings import ServerSettings
from shoal.engines.base import Machine
from shoal.server.audit import service as audit
from shoal.server.edge.certificates import PrivateCA
from shoal.server.models.pool import PoolJoin, PoolRow
from shoal.server.policy import hash_token
from shoal.server.pool import join as pool_join
from shoal.server.pool import pool_rows
from shoal.server.pool import supervisor as pool_supervisor
from shoal.server.pool.runtime import Runtime, constraints, pack_wheel, runtime
from shoal.server.pool.ssh import Ssh, program
from shoal.testing.server import AppClient, IdleEngine, add_person

TOKEN = "shoalp_the-token"


@pytest.fixture
def as_boss(app, ctx):
    return AppClient(app, add_person(ctx, "boss@example.org", is_admin=True).key)


def add_row(ctx, name="gpu1", **values):
    machine_id = pool_rows.make(ctx, name, PoolAdd(host="10.0.0.5"), via="ssh")
    pool_rows.change(ctx, machine_id, **{"state": "up", "slots": 2} | values)
    ctx.pool.refresh(ctx)
    return machine_id


def add_join(ctx, *, life=timedelta(hours=1), machine_id=None, **ask):
    row = PoolJoin(
        id=f"join_{machine_id}", token_hash=hash_token(TOKEN), ask=JoinCommandRequest(**ask).model_dump(mode="json"),
        address="127.0.0.1", expires_at=utcnow() + life, machine_id=machine_id,
    )  # fmt: skip
    ctx.db.write(lambda session: session.add(row))


def test_a_machine_that_is_not_there_is_not_found_with_a_guess(ctx, as_boss):
    add_row(ctx)
    answer = as_boss.get("/pool/machines/gpu2")
    assert answer.status_code == 404 and "Did you mean 'gpu1'?" in answer.json()["error"]["message"]


def test_one_that_no_engine_sees_is_lost(ctx, as_boss):
    add_row(ctx)
    assert [(m["name"], m["state"], m["slots_free"]) for m in as_boss.get("/pool").json()] == [("gpu1", "lost", 0)]


def test_draining_reaches_the_engine_and_is_taken_back(ctx, as_boss):
    add_row(ctx)
    as_boss.request("PATCH", "/pool/machines/gpu1", json={"draining": True})
    assert [m.state for m in ctx.pool.machines()] == ["draining"]
    as_boss.request("PATCH", "/pool/machines/gpu1", json={"draining": False})
    assert [m.state for m in ctx.pool.machines()] == ["up"]


def test_only_a_member_can_be_drained(ctx, as_boss):
    add_row(ctx, state="failed")
    assert as_boss.request("PATCH", "/pool/machines/gpu1", json={"draining": True}).status_code == 409


def test_another_machine_does_not_take_a_name(ctx, as_boss):
    add_row(ctx)
    answer = as_boss.post("/pool", {"host": "10.0.0.6", "name": "gpu1"})
    assert answer.status_code == 409 and answer.json()["error"]["hint"] == "--name ANOTHER"


def test_what_was_being_added_when_the_server_ended_has_failed(ctx):
    add_row(ctx, state="adding")
    pool_supervisor.give_up_unfinished(ctx)
    with ctx.db.read() as session:
        row = session.scalars(select(PoolRow)).one()
    assert row.state == "failed" and "the server stopped" in row.problems[0]["text"]


@pytest.mark.parametrize("state", ["expired", "used", "unknown"])
def test_a_join_token_works_once_and_in_time(ctx, app, state):
    if state == "expired":
        add_join(ctx, life=timedelta(seconds=-1))
    elif state == "used":
        add_join(ctx, machine_id=add_row(ctx))
    answer = AppClient(app, headers={JOIN_HEADER: TOKEN}).get("/pool/join/wheel")
    assert answer.status_code == 401 and "shoal pool join-command" in answer.json()["error"]["hint"]
    assert answer.json()["error"]["code"] == NotSignedIn.code


def test_a_machine_that_does_not_fit_hears_all_that_is_wrong_and_may_come_again(ctx, app):
    add_join(ctx)
    joiner = AppClient(app, headers={JOIN_HEADER: TOKEN})
    facts = {
        "python": [3, 8, 1], "executable": "/usr/bin/python3", "has_venv": True, "writable": True, "home": "/Users/ada/.shoal",
        "disk_free": 1, "unreachable": [], "open": False, "address": "10.0.0.9", "lookup_s": 0.0, "hostname": "gpu9",
        "nvidia": False, "nvidia_cards": 0, "rocm": 0, "xpu": 0, "cores": 4,
    }  # fmt: skip
    answer = joiner.post("/pool/join/join", {"facts": facts, "time": utcnow().timestamp()})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 409 and message.count("\n- ") == 3 and "its Python is 3.8" in message
    with ctx.db.read() as session:
        assert session.scalars(select(PoolRow)).all() == []
    assert joiner.get("/pool/join/wheel").status_code == 200
    assert audit.list_entries(ctx, action="machine") == []


def test_the_machines_side_is_one_program_for_old_interpreters_and_names_what_it_installs():
    script = pool_join.script("the CA", ServerSettings()).decode()
    ast.parse(script, feature_version=(3, 8))
    assert runtime().sha256 in script and "the CA" in script and "from shoal." not in script
    ast.parse(program({"do": "probe", "server": "10.0.0.1"}), feature_version=(3, 8))


def test_the_wheel_holds_what_runs_here_and_is_always_the_same():
    packed = pack_wheel()
    assert packed == pack_wheel()
    with zipfile.ZipFile(BytesIO(packed)) as archive:
        [record] = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        lines = [line.rsplit(",", 2) for line in archive.read(record).decode().splitlines()]
        assert {name for name, _, _ in lines} == set(archive.namelist())
        for name, digest, size in lines:
            if digest:
                data = archive.read(name)
                found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={found}", len(data))
        assert "shoal/agent/main.py" in archive.namelist()


def test_another_content_is_another_runtime_and_builds_of_a_version_are_not_told_apart():
    assert isinstance(runtime(), Runtime) and "ray" in runtime().extras.split(",")
    assert "+" not in constraints() and "shoal" not in constraints()


def test_ssh_never_asks_takes_a_new_host_key_once_and_no_argument_for_an_option(tmp_path):
    known = {"user": "ada", "host": "gpu1", "port": 2222, "key": "/keys/id", "known_hosts": tmp_path / "known"}
    first, later = (Ssh(**known, is_new=is_new).argv("true") for is_new in (True, False))
    assert "-oBatchMode=yes" in first and "-oStrictHostKeyChecking=accept-new" in first
    assert "-oStrictHostKeyChecking=yes" in later
    assert first[-3:] == ["--", "ada@gpu1", "true"]


def test_the_line_to_paste_is_one_and_runs_only_the_program_it_was_made_for(ctx, app, tmp_path):
    ctx.pool.open(ctx, app)
    try:
        line = pool_join.command(ctx, JoinCommandRequest(address="127.0.0.1")).command
        assert "\n" not in line and line.startswith(f"SHOAL_JOIN={pool_join.TOKEN_PREFIX}")
        token = line.split()[0].partition("=")[2]
        other = hashlib.sha256(pool_join.script(PrivateCA(ctx.layout).pem, ServerSettings())).hexdigest()
        ran = subprocess.run(["bash", "-c", line.replace(other, "0" * 64)], capture_output=True, text=True)
        assert ran.returncode == 1 and "get a new join command" in ran.stderr
        assert line.split()[-1].startswith("https://"), "the token is never sent in clear text"
        with ctx.db.read() as session:
            assert [row.token_hash for row in session.scalars(select(PoolJoin))] == [hash_token(token)]
    finally:
        ctx.pool.close()


class Away(IdleEngine):
    """One machine, which is lost while `is_lost`."""

    is_lost = True

    def capacity(self):
        return [Machine(name="gpu1", kind="cpu", slots=1, state="lost" if self.is_lost else "up")]


def test_a_lost_machine_is_given_time_to_come_back_then_tried_ever_more_rarely(ctx, monkeypatch):
    engine, tried = Away(), []
    ctx.engine.add("away", engine)
    supervisor = pool_supervisor.PoolSupervisor(ctx)
    monkeypatch.setattr(supervisor, "_revive", tried.append)
    monkeypatch.setattr(ctx.pool, "submit", lambda work: work())
    supervisor.poll(0.0)
    supervisor.poll(19.0)
    assert tried == []
    for now in (21.0, 40.0, 42.0, 80.0, 82.1):
        supervisor.poll(now)
    assert len(tried) == 3
    engine.is_lost = False
    supervisor.poll(100.0)
    engine.is_lost = True
    supervisor.poll(101.0)
    assert len(tried) == 3
