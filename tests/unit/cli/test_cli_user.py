"""Accounts from the command line: made, listed, disabled, reset; and one's own password."""

from __future__ import annotations

import io
import json
import sys

import pytest
from clirun import Cli
from stubserver import Stub, reply

from shoal.core.errors import NotAllowedNow

WHEN = "2025-01-31T12:00:00Z"
ADA = {
    "id": "usr_1", "email": "ada@example.org", "name": "Ada", "is_admin": False, "created_at": WHEN, "disabled_at": None,
    "has_password": True, "workspaces": 2, "jobs": 7,
}  # fmt: skip


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_new_account_gets_a_random_password_that_is_printed_once(cli: Cli, stub: Stub) -> None:
    stub.routes = {"POST /admin/users": reply(201, ADA)}
    first, second = (cli("user", "add", "ada@example.org", "--name", "Ada") for _ in range(2))
    assert first.code == 0, first.err
    sent = stub.asked[0].json
    assert first.out.strip() == sent["password"] != second.out.strip()
    assert len(sent["password"]) >= 10
    assert (sent["email"], sent["name"], sent["is_admin"]) == ("ada@example.org", "Ada", False)
    assert "shoal login --url" in first.err
    shown = json.loads(cli("user", "add", "ada@example.org", "--json").out)
    assert shown["password"] == stub.asked[-1].json["password"]


def test_a_given_password_is_not_printed(cli: Cli, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.routes = {"POST /admin/users": reply(201, ADA), "PUT /admin/users/ada%40example.org/password": reply(body=ADA)}
    for command in (["add", "ada@example.org", "--admin"], ["reset", "ada@example.org"]):
        type_in(monkeypatch, "hunter2-hunter2\n")
        ran = cli("user", *command, "--password-stdin")
        assert ran.code == 0, ran.err
        assert stub.asked[-1].json["password"] == "hunter2-hunter2"
        assert "hunter2" not in ran.out + ran.err
    assert stub.asked[0].json["is_admin"] is True


def test_the_list_shows_who_is_admin_and_who_is_disabled(cli: Cli, stub: Stub) -> None:
    rows = [ADA, ADA | {"email": "bob@x.org", "is_admin": True}, ADA | {"email": "eve@x.org", "disabled_at": WHEN}]
    stub.routes = {"GET /admin/users": reply(body=rows)}
    said = cli("user", "list").out
    assert [line.split()[:2] for line in said.splitlines()[1:]] == [
        ["ada@example.org", "active"], ["bob@x.org", "admin"], ["eve@x.org", "disabled"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["disable", "--yes"], {"disabled": True}),
        (["enable"], {"disabled": False}),
        (["promote"], {"is_admin": True}),
        (["demote"], {"is_admin": False}),
    ],
)
def test_an_account_is_changed(cli: Cli, stub: Stub, words: list[str], sent: dict[str, bool]) -> None:
    stub.routes = {"PATCH /admin/users/ada%40example.org": reply(body=ADA)}
    ran = cli("user", words[0], "ada@example.org", *words[1:])
    assert ran.code == 0, ran.err
    assert {name: value for name, value in stub.asked[0].json.items() if value is not None} == sent


def test_an_account_is_not_disabled_without_a_yes(cli: Cli, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "")
    ran = cli("user", "disable", "ada@example.org")
    assert ran.code == 2
    assert not stub.asked


def test_a_refusal_is_passed_on(cli: Cli, stub: Stub) -> None:
    stub.routes = {
        "PATCH /admin/users/ada%40example.org": reply(409, NotAllowedNow("This server needs an admin.").to_wire())
    }
    assert "needs an admin" in cli("user", "demote", "ada@example.org").err


def test_ones_own_password_is_changed(cli: Cli, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.routes = {"POST /auth/password": reply(204, b"")}
    type_in(monkeypatch, "old-password\nnew-password\n")
    ran = cli("password", "--stdin")
    assert ran.code == 0, ran.err
    assert stub.asked[0].json == {"old_password": "old-password", "new_password": "new-password"}
    type_in(monkeypatch, "only-one\n")
    assert cli("password", "--stdin").code == 2
    assert len(stub.asked) == 1
