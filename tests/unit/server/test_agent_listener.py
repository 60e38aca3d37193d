"""Requests that machines may send to the agent listener, and those that are refused."""

import json
import socket

import httpx
import pytest
from starlette.datastructures import Headers

from shoal.agent.link import Link
from shoal.core.agents import TOKEN_HEADER
from shoal.core.errors import NotSignedIn, Refused, Unreachable
from shoal.core.pool import JOIN_HEADER
from shoal.core.tls import context_for
from shoal.server.edge.certificates import PrivateCA
from shoal.server.pool.agent_listener import AgentListener, is_for_machines
from shoal.testing.server import make_app

AGENT, JOIN, JOB = {TOKEN_HEADER: "t"}, {JOIN_HEADER: "t"}, {"Authorization": "Bearer shoalj_x"}


@pytest.mark.parametrize(
    ("path", "headers", "is_let_in"),
    [
        ("/api/v1/agent/beat", AGENT, True),
        ("/api/v1/agent/beat", {}, False),
        ("/api/v1/pool/join/script", {}, True),
        ("/api/v1/pool/join/join", JOIN, True),
        ("/api/v1/pool/join/join", {}, False),
        ("/api/v1/workspaces/w/store/fetch", JOB, True),
        ("/api/v1/workspaces/w/store/fetch", {"Authorization": "Bearer shoal_x"}, False),
        ("/api/v1/workspaces/w/jobs", AGENT, False),
        ("/api/v1/pool", JOB, False),
        ("/api/v1/admin/users", JOB, False),
        ("/api/v1/auth/sign-in", {}, False),
        ("/api/v1/health", {}, True),
        ("/api/v1/health/ready", {}, True),
        ("/", {}, False),
        ("/machines", {}, False),
        ("/agent/beat", AGENT, False),
        ("/api/v1/agent/../auth/me", AGENT, True),
    ],
)
def test_only_what_machines_need_is_let_in(path, headers, is_let_in):
    assert is_for_machines(path, Headers(headers)) is is_let_in


@pytest.fixture
def make_door(private_ctx, tmp_path):
    """A function that makes a listener for agents; all are closed at the end."""
    made = []

    def make():
        ca = PrivateCA(private_ctx.layout)
        made.append(
            AgentListener(make_app(private_ctx), tmp_path / "door.json", lambda: ca.context(private_ctx.settings))
        )
        return made[-1]

    yield make
    for door in made:
        door.close()


@pytest.fixture
def door(make_door):
    return make_door()


@pytest.fixture
def tls(private_ctx):
    return context_for(PrivateCA(private_ctx.layout).pem)


def test_the_door_serves_agents_and_hides_the_rest(door, tls):
    url = door.open("127.0.0.1")
    assert door.has(url) and url.startswith("https://")
    with httpx.Client(base_url=url, trust_env=False, verify=tls) as client:
        assert client.get("/api/v1/health").json()["status"] == "ok"
        # A private server refuses every name but its own; a machine comes by the address it sees.
        assert client.post("/api/v1/agent/beat", headers={**AGENT, "Host": "10.0.0.1"}).status_code == 401
        for path in ("/", "/sign-in", "/api/v1/workspaces", "/api/v1/agent/beat", "/api/v1/agent/../auth/me"):
            assert client.get(path, headers={"Authorization": "Bearer x"}).status_code == 404, path


def test_the_door_is_where_it_was_after_a_restart(door, make_door):
    url = door.open("127.0.0.1")
    assert door.open("127.0.0.1") == url
    door.close()
    assert make_door().open("127.0.0.1") == url


def test_a_door_whose_port_is_taken_is_refused_not_moved(make_door, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        (tmp_path / "door.json").write_text(json.dumps({"tls 127.0.0.1": other.getsockname()[1]}))
        with pytest.raises(Refused, match="cannot be listened on"):
            make_door().open("127.0.0.1")


def test_an_agent_that_knows_the_ca_reports_over_tls_and_one_that_does_not_sends_nothing(door, private_ctx):
    url = door.open("127.0.0.1")
    with pytest.raises(NotSignedIn, match="Unknown agent token"):
        Link(url, "t", ca=PrivateCA(private_ctx.layout).pem).post("/beat", {})
    with pytest.raises(Unreachable, match="certificate verify failed"):
        Link(url, "t").post("/beat", {})


def test_agents_of_an_earlier_version_find_their_port_without_tls(make_door, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    (tmp_path / "door.json").write_text(json.dumps({"127.0.0.1": port}))
    door = make_door()
    door.open_before_tls()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        assert client.get("/api/v1/health").json()["status"] == "ok"
