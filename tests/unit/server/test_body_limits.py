"""What a request without a valid key may send, and that large bodies do not stop everyone else."""

from __future__ import annotations

import json

import pytest

from shoal.core.agents import TOKEN_HEADER
from shoal.core.people import Scope
from shoal.server import routers
from shoal.server.body_limits import STRANGERS_LIMIT
from shoal.testing.server import AppClient, add_key, add_person

LARGE = {"email": "a@example.org", "password": "x" * STRANGERS_LIMIT}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer shoal_invented"},
        {TOKEN_HEADER: "invented"},
        {"Authorization": "Basic eDp5"},
    ],
    ids=["nothing", "a key", "an agent's token", "a password"],
)
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "streamed"])
def test_a_stranger_may_send_64_kib(app, headers, announced):
    body = json.dumps(LARGE).encode()

    async def pieces():
        yield body

    client = AppClient(app, headers=headers | {"Content-Type": "application/json"})
    answer = client.request("POST", "/auth/sign-in", content=body if announced else pieces())
    assert answer.status_code == 401
    assert "64 KiB" in answer.json()["error"]["message"]


def test_a_small_body_reaches_the_route(app):
    answer = AppClient(app).post("/auth/sign-in", {"email": "a@example.org", "password": "x"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (401, "E-mail or password is wrong.")


def test_someone_with_a_key_may_send_more_and_it_is_parsed_beside_the_event_loop(ctx, app, monkeypatch):
    parsed = []
    monkeypatch.setattr(routers, "_parse", lambda body: parsed.append(len(body)) or json.loads(body))
    person = add_person(ctx, "ada@example.org")
    client = AppClient(app, add_key(ctx, person, "laptop", scopes=[Scope.READ, Scope.WRITE, Scope.ADMIN]))
    answer = client.post("/auth/sign-in", LARGE)
    assert answer.status_code == 422, "the password is longer than any"
    assert parsed == [len(json.dumps(LARGE, separators=(",", ":"), ensure_ascii=False))]
    answer = client.post("/auth/sign-in", {"email": "a@example.org", "password": "x"})
    assert len(parsed) == 1
