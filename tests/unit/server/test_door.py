"""What machines may ask for through the door, and what not."""

import json
import socket

import httpx
import pytest
from starlette.datastructures import Headers

from shoal.core.agents import TOKEN_HEADER
from shoal.core.errors import Refused
from shoal.core.pool import JOIN_HEADER
from shoal.server.door import Door, is_for_machines
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
        ("/", {}, False),
        ("/machines", {}, False),
        ("/agent/beat", AGENT, False),
        ("/api/v1/agent/../auth/me", AGENT, True),
    ],
)
def test_only_what_machines_need_is_let_in(path, headers, is_let_in):
    assert is_for_machines(path, Headers(headers)) is is_let_in


@pytest.fixture
def door(private_ctx, tmp_path):
    made = Door(make_app(private_ctx), tmp_path / "door.json")
    yield made
    made.close()


def test_the_door_serves_agents_and_hides_the_rest(door):
    url = door.open("127.0.0.1")
    with httpx.Client(base_url=url, trust_env=False) as client:
        assert client.get("/api/v1/health").json()["status"] == "ok"
        # A private server refuses every name but its own; a machine comes by the address it sees.
        assert client.post("/api/v1/agent/beat", headers={**AGENT, "Host": "10.0.0.1"}).status_code == 401
        for path in ("/", "/sign-in", "/api/v1/workspaces", "/api/v1/agent/beat", "/api/v1/agent/../auth/me"):
            assert client.get(path, headers={"Authorization": "Bearer x"}).status_code == 404, path


def test_the_door_is_where_it_was_after_a_restart(door, private_ctx, tmp_path):
    url = door.open("127.0.0.1")
    assert door.open("127.0.0.1") == url
    door.close()
    again = Door(make_app(private_ctx), tmp_path / "door.json")
    assert again.open("127.0.0.1") == url
    again.close()


def test_a_door_whose_port_is_taken_is_refused_not_moved(private_ctx, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        (tmp_path / "door.json").write_text(json.dumps({"127.0.0.1": other.getsockname()[1]}))
        with pytest.raises(Refused, match="cannot be listened on"):
            Door(make_app(private_ctx), tmp_path / "door.json").open("127.0.0.1")
