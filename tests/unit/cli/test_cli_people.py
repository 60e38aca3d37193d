"""Signing in, keys, secrets, registries and workspaces."""

from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path

import pytest
from clirun import Cli
from stubserver import Stub, reply

from shoal.client.config import ClientConfig
from shoal.core.errors import AuthError, NameTaken, NotFound
from shoal.core.settings import Layout

WHEN = "2025-01-31T12:00:00Z"
USER = {"id": "usr_1", "email": "ada@example.org", "name": "Ada", "is_admin": False, "created_at": WHEN}
SESSION = {"token": "session-token", "user": USER, "expires_at": WHEN}
KEY = {
    "id": "key_1", "name": "cli-x", "scopes": ["read", "write", "admin"], "hint": "abcd", "created_at": WHEN,
    "expires_at": None, "last_used_at": None, "revoked_at": None,
}  # fmt: skip


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hunter2-hunter2\n"))


@pytest.fixture
def server(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Stub:
    monkeypatch.delenv("SHOAL_API_KEY")
    monkeypatch.delenv("SHOAL_URL")
    stub.routes = {
        "POST /auth/sign-in": reply(body=SESSION),
        "POST /auth/sign-up": reply(body=SESSION),
        "POST /auth/sign-out": reply(204, b""),
        "POST /keys": reply(201, {**KEY, "key": "the-new-key"}),
        "GET /auth/me": reply(body=USER),
        "DELETE /keys/key_1": reply(204, b""),
    }
    return stub


@pytest.mark.parametrize(("used", "then"), [("vision", "images"), ("other", "other")])
def test_a_renamed_workspace_that_is_in_use_stays_in_use(
    cli: Cli, stub: Stub, home: Path, used: str, then: str
) -> None:
    view = {"id": "ws_1", "name": "images", "role": "owner", "jobs": 0, "datasets": 0, "created_at": WHEN}
    stub.routes = {"PATCH /workspaces/vision": reply(body=view)}
    home.mkdir(exist_ok=True)
    (home / "client.json").write_text(json.dumps({"url": stub.url, "workspace": used}))
    ran = cli("workspace", "rename", "vision", "images")
    assert ran.code == 0, ran.err
    assert stub.asked[0].json == {"name": "images"}
    assert json.loads((home / "client.json").read_text())["workspace"] == then


def test_login_trades_the_password_for_a_key_kept_in_a_private_file(
    cli: Cli, server: Stub, home: Path, typed: None
) -> None:
    ran = cli("login", "--url", server.url, "--email", "ada@example.org", "--password-stdin")
    assert ran.code == 0, ran.err
    assert server.asked[0].json == {"email": "ada@example.org", "password": "hunter2-hunter2"}
    kept = json.loads((home / "client.json").read_text())
    assert kept == {"url": server.url, "key": "the-new-key", "key_id": "key_1"}
    assert stat.S_IMODE((home / "client.json").stat().st_mode) == 0o600
    assert "hunter2" not in ran.out + ran.err
    assert server.asked[-1].path.endswith("/auth/sign-out"), "the session is not left behind"

    assert cli("whoami").code == 0
    assert server.asked[-1].headers["Authorization"] == "Bearer the-new-key"

    assert cli("logout").code == 0
    assert server.asked[-1].path.endswith("/keys/key_1")
    assert json.loads((home / "client.json").read_text()) == {}


def test_a_second_login_from_the_same_machine_finds_another_key_name(
    cli: Cli, server: Stub, typed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = reply(409, NameTaken().to_wire())
    del server.routes["POST /keys"]
    server.will(taken, reply(201, {**KEY, "key": "k"}))
    assert cli("login", "--url", server.url, "--email", "a@b", "--password-stdin").code == 0
    names = [a.json["name"] for a in server.asked if a.path.endswith("/keys")]
    assert names[1].startswith(names[0] + "-")


def test_login_with_a_key_checks_it_first(cli: Cli, server: Stub, home: Path, typed: None) -> None:
    server.routes["GET /auth/me"] = reply(401, AuthError("No.").to_wire())
    assert cli("login", "--url", server.url, "--key-stdin").code == 5
    assert not (home / "client.json").exists()


def test_signup_signs_in(cli: Cli, server: Stub, home: Path, typed: None) -> None:
    ran = cli("signup", "--url", server.url, "--email", "ada@example.org", "--name", "Ada", "--password-stdin")
    assert ran.code == 0, ran.err
    assert "Welcome, Ada" in ran.err
    assert json.loads((home / "client.json").read_text())["key"] == "the-new-key"


def test_someone_signed_in_makes_accounts_for_others_and_stays_who_they_are(
    cli: Cli, server: Stub, home: Path, typed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_API_KEY", "admin-key")
    ran = cli("signup", "--url", server.url, "--email", "bob@example.org", "--password-stdin")
    assert ran.code == 0, ran.err
    assert server.asked[0].headers["Authorization"] == "Bearer admin-key"
    assert not (home / "client.json").exists()


def test_logout_forgets_the_key_even_if_the_server_is_away(cli: Cli, server: Stub, home: Path, typed: None) -> None:
    cli("login", "--url", server.url, "--email", "a@b", "--password-stdin")
    server.routes["DELETE /keys/key_1"] = reply(401, AuthError("No.").to_wire())
    ran = cli("logout")
    assert ran.code == 0
    assert "could not be revoked" in ran.err
    assert json.loads((home / "client.json").read_text()) == {}


def test_a_new_key_alone_is_on_stdout(cli: Cli, stub: Stub) -> None:
    stub.will(reply(201, {**KEY, "key": "the-new-key"}))
    ran = cli("key", "create", "ci", "--scope", "read", "--scope", "write", "--expires", "30d")
    assert ran.out == "the-new-key\n"
    assert stub.asked[0].json == {"name": "ci", "scopes": ["read", "write"], "expires_in_s": 2_592_000}


@pytest.mark.parametrize(
    "command", [["secret", "create", "wandb", "--value-stdin"], ["code-registry", "connect", "--token-stdin"]]
)
def test_secrets_come_from_stdin_and_are_never_printed(cli: Cli, stub: Stub, typed: None, command: list[str]) -> None:
    stub.will(
        reply(body={"name": "wandb", "created_at": WHEN, "updated_at": WHEN, "host": "github.com", "username": "x"})
    )
    ran = cli(*command)
    assert ran.code == 0, ran.err
    assert "hunter2-hunter2" in stub.asked[0].body.decode()
    assert "hunter2" not in ran.out + ran.err


def test_an_empty_secret_is_refused(cli: Cli, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert cli("secret", "create", "s", "--value-stdin").code == 2


def test_a_workspace_is_chosen_only_if_it_exists(cli: Cli, stub: Stub, home: Path) -> None:
    stub.will(
        reply(body=[{"id": "ws_1", "name": "vision", "role": "owner", "jobs": 1, "datasets": 0, "created_at": WHEN}])
    )
    ran = cli("workspace", "use", "visoin")
    assert (ran.code, "Did you mean 'vision'?" in ran.err) == (3, True)
    assert not (home / "client.json").exists()
    assert cli("workspace", "use", "vision").code == 0
    assert json.loads((home / "client.json").read_text()) == {"workspace": "vision"}


def test_members_are_set_and_removed_by_e_mail(cli: Cli, stub: Stub) -> None:
    stub.will(reply(body={"user_id": "usr_2", "email": "bob@example.org", "name": "", "role": "viewer"}))
    assert cli("workspace", "invite", "bob@example.org", "--role", "viewer", "-w", "vision").code == 0
    assert stub.asked[0].json == {"email": "bob@example.org", "role": "viewer"}
    stub.will(reply(204, b""))
    assert cli("workspace", "remove", "bob@example.org").code == 0
    assert stub.asked[1].path.endswith("/members/bob%40example.org")


@pytest.mark.parametrize("noun", ["key", "secret", "source", "code-registry", "workspace"])
def test_every_noun_lists_as_json_and_as_a_table(cli: Cli, stub: Stub, noun: str) -> None:
    stub.will(reply(body=[]))
    assert cli(noun, "list", "--json").out == "[]\n"
    assert len(cli(noun, "list").out.splitlines()) == 1


INVITATION = {
    "id": "winv_1", "workspace": "default", "email": "bob@example.org", "role": "member", "created_by": "ada@example.org",
    "created_at": WHEN, "expires_at": "2099-01-31T12:00:00Z", "is_open": True,
}  # fmt: skip
CREATED = INVITATION | {"code": "shoali_x", "path": "/invite/shoali_x"}
JOINED = {"id": "ws_9", "name": "vision", "role": "member", "jobs": 0, "datasets": 0, "created_at": WHEN}
MEMBERS = "/workspaces/default/members"
INVITATIONS = "/workspaces/default/invitations"


def test_inviting_someone_without_an_account_gives_a_link(stub: Stub, cli: Cli) -> None:
    missing = NotFound("Nobody has an account for bob@example.org.", details={"no_account": "bob@example.org"})
    no_address = reply(404, NotFound("Not found: /api/v1/address").to_wire())  # as a server of an earlier version
    stub.routes = {f"PUT {MEMBERS}": reply(404, missing.to_wire()), f"POST {INVITATIONS}": reply(201, CREATED)}
    stub.routes["GET /address"] = no_address
    ran = cli("workspace", "invite", "bob@example.org", "--expires", "2h")
    assert ran.code == 0, ran.err
    assert ran.out == f"{stub.url}/invite/shoali_x\n", "stdout is data"
    assert "works once" in ran.err
    assert "works on this machine only" in ran.err and "shoal server share" in ran.err, (
        "this server listens to loopback"
    )
    assert stub.asked[-2].json == {"email": "bob@example.org", "role": "member", "expires_in_s": 7200}
    assert json.loads(cli("workspace", "invite", "bob@example.org", "--json").out)["link"].endswith("/invite/shoali_x")


@pytest.mark.parametrize("fingerprint", [None, "sha256:4f0c"])
def test_an_invitation_says_how_to_come_in_from_elsewhere(stub: Stub, cli: Cli, fingerprint: str | None) -> None:
    address = {"url": "https://10.0.0.5:8443", "ca_fingerprint": fingerprint}
    stub.routes = {f"POST {INVITATIONS}": reply(201, CREATED), "GET /address": reply(body=address)}
    ran = cli("workspace", "invite")
    fragment = f"#{fingerprint}" if fingerprint else ""
    assert ran.out.splitlines()[0] == f"https://10.0.0.5:8443/invite/shoali_x{fragment}"
    told = ran.out + ran.err
    assert ("--join shoali_x" in told) == (fingerprint is not None)
    assert ("pip install --extra-index-url https://10.0.0.5:8443/simple/" in told) == (fingerprint is None)
    assert "signup --invitation LINK" in told


def test_inviting_an_account_adds_it_and_makes_no_link(stub: Stub, cli: Cli) -> None:
    stub.routes = {
        f"PUT {MEMBERS}": reply(body={"user_id": "u", "email": "bob@example.org", "name": "", "role": "member"})
    }
    ran = cli("workspace", "invite", "bob@example.org")
    assert (ran.code, ran.out) == (0, "") and "bob@example.org is now member" in ran.err


def test_another_refusal_of_an_invite_is_told_as_it_is(stub: Stub, cli: Cli) -> None:
    stub.routes = {f"PUT {MEMBERS}": reply(404, NotFound("There is no workspace 'default'.").to_wire())}
    ran = cli("workspace", "invite", "bob@example.org")
    assert ran.code != 0 and "There is no workspace" in ran.err


def test_open_invitations_are_listed_and_revoked(stub: Stub, cli: Cli) -> None:
    stub.routes = {f"GET {INVITATIONS}": reply(body=[INVITATION]), f"DELETE {INVITATIONS}/winv_1": reply(204, b"")}
    assert "winv_1" in cli("workspace", "invitations").out
    assert cli("workspace", "revoke", "winv_1").code == 0


def test_signing_up_by_a_link_needs_no_url_and_works_in_the_workspace(
    server: Stub, cli: Cli, typed: None, home: Path
) -> None:
    server.routes["POST /auth/sign-up"] = reply(201, SESSION | {"joined": JOINED})
    ran = cli(*f"signup --email ada@example.org --password-stdin --invitation {server.url}/invite/shoali_x".split())
    assert ran.code == 0, ran.err
    sent = next(a.json for a in server.asked if a.path.endswith("/sign-up"))
    assert sent["invitation"] == "shoali_x"
    assert "member of workspace 'vision'" in ran.err
    assert ClientConfig.load(Layout(home)).workspace == "vision"


def test_signing_in_by_a_link_joins_with_the_account_one_has(server: Stub, cli: Cli, typed: None, home: Path) -> None:
    server.routes["POST /auth/sign-in"] = reply(body=SESSION)
    server.routes["POST /auth/invitation"] = reply(body=JOINED | {"name": "default"})
    ran = cli(*f"login --email ada@example.org --password-stdin --invitation {server.url}/invite/shoali_x".split())
    assert ran.code == 0, ran.err
    assert ClientConfig.load(Layout(home)).workspace == "ws_9", "everyone has a workspace of that name"


def test_someone_signed_in_joins_by_a_link(stub: Stub, cli: Cli, home: Path) -> None:
    stub.routes = {"POST /auth/invitation": reply(body=JOINED)}
    ran = cli("workspace", "join", "shoali_x")
    assert ran.code == 0 and "member of 'vision'" in ran.err
    assert stub.asked[-1].json == {"code": "shoali_x"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_code_of_the_console_becomes_a_key(
    cli: Cli, server: Stub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("shoals_code\n"))
    ran = cli("login", "--url", server.url, "--browser")
    assert ran.code == 0, ran.err
    assert f"{server.url}/settings/terminal" in ran.err
    assert {asked.headers.get("authorization") or asked.headers["Authorization"] for asked in server.asked} == {
        "Bearer shoals_code"
    }
    assert json.loads((home / "client.json").read_text())["key"] == "the-new-key"


def test_a_lost_password_is_set_with_the_code_of_a_mail(
    cli: Cli, server: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.routes = {"POST /auth/password/lost": reply(204, b""), "POST /auth/password/recover": reply(204, b"")}
    ran = cli("password", "--lost", "--url", server.url, "--email", "ada@example.org")
    assert ran.code == 0 and "shoal password --code" in ran.err, ran.err
    monkeypatch.setattr(sys, "stdin", io.StringIO("shoalr_code\na new password\n"))
    ran = cli("password", "--code", "--stdin", "--url", server.url)
    assert ran.code == 0, ran.err
    assert [asked.json for asked in server.asked] == [
        {"email": "ada@example.org"},
        {"code": "shoalr_code", "new_password": "a new password"},
    ]


def test_sign_in_services_are_added_after_a_check_and_listed_without_secrets(
    cli: Cli, stub: Stub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = dict.fromkeys(("authorization_endpoint", "token_endpoint", "jwks_uri"), f"{stub.url}/x")
    issuer = stub.url.rstrip("/")
    add = ("server", "oidc", "add", "company", "--client-id", "c", "--issuer", issuer, "--domain", "example.org")
    monkeypatch.setattr(sys, "stdin", io.StringIO("client-secret\n"))
    ran = cli(*add, "--secret-stdin")
    assert ran.code != 0, "the issuer does not describe itself"
    assert not (home / "server/sign_in.toml").exists()
    stub.routes["GET /.well-known/openid-configuration"] = reply(body={"issuer": issuer, **ends})
    monkeypatch.setattr(sys, "stdin", io.StringIO("client-secret\n"))
    ran = cli(*add, "--secret-stdin")
    assert ran.code == 0 and "/sign-in/callback/company" in ran.err, ran.err
    assert stat.S_IMODE((home / "server/sign_in.toml").stat().st_mode) == 0o600
    ran = cli("server", "oidc", "list", "--json")
    assert json.loads(ran.out)[0]["domains"] == ["example.org"] and "client-secret" not in ran.out
    assert cli("server", "oidc", "remove", "company", "--yes").code == 0
    assert json.loads(cli("server", "oidc", "list", "--json").out) == []
