"""The sandbox that a server requires for its jobs, and what the agent reports is shown."""

from __future__ import annotations

import pytest

from shoal.core.agents import TOKEN_HEADER
from shoal.core.errors import InvalidSpec
from shoal.core.settings import ServerSettings
from shoal.server.jobs import sandboxes
from shoal.server.jobs.views import job_view
from shoal.server.models.jobs import Job
from shoal.testing.server import AppClient, add_job, add_node, add_person, make_app, make_context

JOIN = {"pid": 7, "boot_id": "b", "host": "h", "address": "127.0.0.1", "port": 20001, "process": "one"}


@pytest.fixture
def server(tmp_path):
    """`server(private=True, people=1, job_sandbox="S3")` returns the context, an agent's client and a person's."""
    made = []

    def make(*, private, people=1, **settings):
        ctx = make_context(tmp_path / str(len(made)), private=private, settings=ServerSettings(**settings))
        made.append(ctx)
        person, *_ = [add_person(ctx, f"{n}@example.org") for n in range(people)]
        job_id = add_job(ctx, person, text=b"print(1)\n")
        token = add_node(ctx, job_id)

        def work(session):
            session.get_one(Job, job_id).state = "starting"

        ctx.db.write(work)
        return ctx, AppClient(make_app(ctx), headers={TOKEN_HEADER: token}), job_id

    yield make
    for ctx in made:
        ctx.db.close()


@pytest.mark.parametrize(
    ("private", "people", "setting", "least", "files"),
    [
        (True, 1, "", "S0", "machine"),
        (True, 1, "S0", "off", "machine"),
        (True, 1, "S1", "S1", "machine"),
        (True, 1, "S2", "S2", "own"),
        (True, 1, "S3", "S3", "own"),
        (True, 2, "", "S3", "own"),
        (True, 2, "S0", "S3", "own"),
        (False, 1, "", "S3", "own"),
        (False, 2, "S2", "S2", "own"),
        (False, 2, "S1", "S1", "machine"),
    ],
)
def test_a_server_of_several_people_requires_s3_unless_its_admin_says_otherwise(
    server, private, people, setting, least, files
):
    _, agent, _ = server(private=private, people=people, job_sandbox=setting)
    order = agent.post("/agent/join", json=JOIN).json()["sandbox"]
    assert (order["least"], order["files"]) == (least, files)


@pytest.mark.parametrize(
    ("setting", "egress", "allow"),
    [("open", "open", []), ("none", "none", []), ("pypi.org, *.hf.co", "list", ["pypi.org", "*.hf.co"])],
)
def test_the_destinations_of_jobs_are_a_setting(server, setting, egress, allow):
    _, agent, _ = server(private=False, job_egress=setting)
    order = agent.post("/agent/join", json=JOIN).json()["sandbox"]
    assert (order["egress"], order["allow"]) == (egress, allow)


def test_no_sandbox_at_all_is_for_private_servers_only():
    for wrong, text in (("S0", "private server"), ("S4", "not a level")):
        with pytest.raises(InvalidSpec, match=text):
            sandboxes.check(ServerSettings(job_sandbox=wrong), private=False)
    sandboxes.check(ServerSettings(job_sandbox="S0"), private=True)


def test_the_level_that_an_agent_reports_is_shown(server):
    ctx, agent, job_id = server(private=False)
    assert agent.post("/agent/join", json=JOIN).json()["ready"]
    beat = {"state": "running", "paths": "bubblewrap", "sandbox": "S2: no user of its own"}
    assert agent.post("/agent/beat", json=beat).status_code == 200
    with ctx.db.read() as session:
        [attempt] = job_view(session, session.get_one(Job, job_id), "w", None).attempt_list
    assert attempt.nodes[0].sandbox == "S2: no user of its own"
