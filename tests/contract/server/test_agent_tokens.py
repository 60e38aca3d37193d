"""An agent's token ends with its attempt: no reads after the end, its own reports until they are complete, then nothing."""

from datetime import timedelta

import pytest
import zstandard
from sqlalchemy import select

from shoal.core.agents import TOKEN_HEADER
from shoal.core.schema import utcnow
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.sources import Source
from shoal.store.hashing import chunk_hash
from shoal.testing.server import AppClient, add_job, add_node, add_person, make_app, make_context

TEXT = b"print('hello')\n"
JOIN = {"pid": 7, "boot_id": "b", "host": "h", "address": "127.0.0.1", "port": 20001, "process": "one"}
EMPTY = {"files": []}


@pytest.fixture
def ctx(tmp_path):
    context = make_context(tmp_path)
    yield context
    context.db.close()


@pytest.fixture
def agent(ctx):
    person = add_person(ctx, "a@b.c")
    job_id = add_job(ctx, person, text=TEXT)
    token = add_node(ctx, job_id)

    def work(session):
        session.get_one(Job, job_id).state = "starting"

    ctx.db.write(work)
    return AppClient(make_app(ctx), headers={TOKEN_HEADER: token})


def line(agent, seq):
    body = zstandard.compress(b'{"s": %d, "t": 1.0, "r": 0, "e": "out", "m": "late"}\n' % seq)
    return agent.post(f"/agent/segments/log?seq_first={seq}&count=1", content=body).status_code


def reads(ctx, agent):
    with ctx.db.read() as session:
        manifest = session.scalars(select(Source.manifest_id)).one()
    found = [agent.get(f"/agent/manifests/{manifest}"), agent.get(f"/agent/chunks/{chunk_hash(TEXT)}")]
    return [answer.status_code for answer in found]


def end(agent, **more):
    answer = agent.post("/agent/beat", json={"state": "exited", "exit_code": 0, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_token_of_an_ended_attempt_reads_nothing_and_still_delivers_its_logs(ctx, agent):
    assert agent.post("/agent/join", json=JOIN).json()["ready"]
    assert reads(ctx, agent) == [200, 200] and line(agent, 0) == 200
    end(agent)
    assert reads(ctx, agent) == [401, 401]
    assert line(agent, 1) == 200
    assert agent.post("/agent/join", json=JOIN).json()["error"]["code"] == "fenced"
    assert agent.post("/agent/stacks", json={"order": "x", "ranks": []}).status_code == 401
    assert agent.post("/agent/attach", json={"order": "x"}).status_code == 401


def test_once_everything_is_delivered_the_token_opens_nothing(ctx, agent):
    agent.post("/agent/join", json=JOIN)
    end(agent)
    end(agent, final=True)
    assert line(agent, 0) == 401
    assert agent.post("/agent/join", json=JOIN).status_code == 401
    for path, body in (("checkpoints", {"name": "c", "manifest": EMPTY}), ("snapshots", {"manifest": EMPTY})):
        assert agent.post(f"/agent/{path}", json=body).status_code == 401
    assert agent.post("/agent/chunks", content=b"").status_code == 401
    assert reads(ctx, agent) == [401, 401]
    # The answer to the last beat may have been lost: it can be sent again, and says nothing new.
    assert end(agent, final=True)["fenced"]


def test_what_a_lost_agent_has_to_say_is_taken_for_as_long_as_it_tries(ctx, agent):
    agent.post("/agent/join", json=JOIN)
    end(agent)

    def ended_before(days):
        def work(session):
            session.scalars(select(Attempt)).one().ended_at = utcnow() - timedelta(days=days)

        ctx.db.write(work)

    ended_before(7)
    assert line(agent, 0) == 200
    ended_before(9)
    assert line(agent, 1) == 401


def test_secrets_are_handed_out_to_one_process_only(ctx, agent):
    first = agent.post("/agent/join", json=JOIN)
    assert first.json()["secrets"]["SHOAL_JOB_TOKEN"]
    # The reply was lost, or the server was restarted: the same process asks again.
    assert agent.post("/agent/join", json=JOIN).json()["secrets"] == first.json()["secrets"]
    for other in ({"process": "two"}, {"process": None}, {"process": "two", "pid": 8}):
        refused = agent.post("/agent/join", json=JOIN | other)
        assert refused.status_code == 409 and "secrets" not in refused.json()
        assert refused.json()["error"]["code"] != "fenced"
    with ctx.db.read() as session:
        assert session.scalars(select(Node)).one().pid == JOIN["pid"]
        assert session.scalars(select(Job)).one().ended_at is None


def test_an_agent_of_an_older_version_is_known_by_its_pid(agent):
    older = {name: value for name, value in JOIN.items() if name != "process"}
    assert agent.post("/agent/join", json=older).json()["ready"]
    assert agent.post("/agent/join", json=older).json()["ready"]
    assert agent.post("/agent/join", json=older | {"pid": 8}).status_code == 409
