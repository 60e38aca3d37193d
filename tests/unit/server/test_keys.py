"""API keys: shown once, never more powerful or longer-lived than the key that made them, dead at once when revoked."""

from datetime import datetime, timedelta

import pytest

from shoal.core.people import Scope
from shoal.server.models.users import ApiKey
from shoal.server.people.accounts import OWNER_KEY_NAME, ensure_owner
from shoal.server.people.keys import flush_touched, list_keys
from shoal.testing.server import AppClient, add_key, add_person, make_app


def code(response):
    return response.json()["error"]["code"]


def test_a_key_is_shown_once_and_stored_as_a_hash(ctx, app, as_anna):
    made = as_anna.post("/keys", {"name": "laptop", "scopes": ["read"]}).json()
    key = made.pop("key")
    assert key.startswith("shoal_")
    assert len(key) == len("shoal_") + 43
    assert made["hint"] == key[-4:]
    assert made in as_anna.get("/keys").json()
    assert key not in as_anna.get("/keys").text
    assert AppClient(app, key).get("/auth/me").json()["email"] == "anna@example.org"
    ctx.db.close()
    stored = b"".join(p.read_bytes() for p in ctx.layout.server_dir.glob("shoal.db*"))
    assert key.encode() not in stored
    assert key.removeprefix("shoal_").encode() not in stored


@pytest.mark.parametrize("how", ["name", "id"])
def test_a_revoked_key_is_dead_at_once_and_its_name_free_again(app, as_anna, how):
    made = as_anna.post("/keys", {"name": "laptop"}).json()
    assert as_anna.delete(f"/keys/{made[how]}").status_code == 204
    assert code(AppClient(app, made["key"]).get("/auth/me")) == "key_expired"
    assert as_anna.delete(f"/keys/{made[how]}").status_code == 404
    assert as_anna.post("/keys", {"name": "laptop"}).status_code == 201
    assert [k["name"] for k in as_anna.get("/keys").json()] == ["laptop", "laptop", "main"]


def test_two_live_keys_cannot_share_a_name_but_two_people_can(as_anna, as_berta):
    assert as_anna.post("/keys", {"name": "laptop"}).status_code == 201
    assert code(as_anna.post("/keys", {"name": "laptop"})) == "name_taken"
    assert as_berta.post("/keys", {"name": "laptop"}).status_code == 201


def test_a_mistyped_name_is_answered_with_a_guess(as_anna):
    as_anna.post("/keys", {"name": "laptop"})
    assert "Did you mean 'laptop'?" in as_anna.delete("/keys/lapttop").json()["error"]["message"]


def test_other_peoples_keys_do_not_exist(as_anna, berta):
    assert as_anna.delete(f"/keys/{berta.key_id}").status_code == 404
    assert berta.key_id not in as_anna.get("/keys").text


def test_an_expired_key_says_so(ctx, app, anna):
    expired = add_key(ctx, anna, "old", life=timedelta(seconds=-1))
    answer = AppClient(app, expired).get("/auth/me")
    assert (answer.status_code, code(answer)) == (401, "key_expired")


def test_a_key_makes_no_key_with_more_scopes_than_its_own(ctx, app, anna):
    limited = AppClient(app, add_key(ctx, anna, "limited", scopes=[Scope.READ, Scope.ADMIN]))
    assert code(limited.post("/keys", {"name": "more"})) == "forbidden"
    assert code(limited.post("/keys", {"name": "more", "scopes": ["write"]})) == "forbidden"
    assert limited.post("/keys", {"name": "same", "scopes": ["admin", "read"]}).json()["scopes"] == ["read", "admin"]


def test_a_key_that_expires_makes_none_that_outlives_it(ctx, app, anna):
    lent = AppClient(app, add_key(ctx, anna, "lent", life=timedelta(hours=1)))
    assert code(lent.post("/keys", {"name": "for-ever"})) == "forbidden"
    assert code(lent.post("/keys", {"name": "longer", "expires_in_s": 7200})) == "forbidden"
    assert lent.post("/keys", {"name": "shorter", "expires_in_s": 60}).status_code == 201
    assert {k["name"] for k in lent.get("/keys").json()} == {"main", "lent", "shorter"}


@pytest.mark.parametrize(
    "body",
    [{"name": "a b"}, {"name": ""}, {"name": "x", "scopes": []}, {"name": "x", "scopes": ["root"]},
     {"name": "x", "expires_in_s": 0}, {"name": "x", "expires_in_s": 10**12}, {"name": "x", "admin": True}],
)  # fmt: skip
def test_malformed_keys_are_refused(as_anna, body):
    assert as_anna.post("/keys", body).status_code == 422


def test_uses_are_shown_at_once_and_written_only_when_flushed(ctx, anna):
    def stored():
        with ctx.db.read() as session:
            return session.get_one(ApiKey, anna.key_id).last_used_at

    ctx.guards.last_uses.note(anna.key_id)
    ctx.guards.last_uses.note("session_x")
    assert stored() is None
    shown = list_keys(ctx, anna.access().principal)[0].last_used_at
    assert isinstance(shown, datetime)
    flush_touched(ctx)
    assert stored() == shown
    assert list_keys(ctx, anna.access().principal)[0].last_used_at == shown
    flush_touched(ctx)


def owner_client(ctx):
    return AppClient(make_app(ctx), ctx.layout.owner_key.read_text().strip())


def test_the_owner_file_opens_a_private_server_and_is_nobody_elses_to_read(private_ctx):
    ensure_owner(private_ctx)
    file = private_ctx.layout.owner_key
    assert file.stat().st_mode & 0o777 == 0o600
    owner = owner_client(private_ctx)
    assert owner.get("/auth/me").json() | {"id": "", "created_at": ""} == {
        "id": "",
        "email": "owner@localhost",
        "name": "",
        "is_admin": True,
        "created_at": "",
        "email_verified": False,
    }
    assert [w["name"] for w in owner.get("/workspaces").json()] == ["default"]
    assert [p.name for p in file.parent.iterdir() if "owner" in p.name] == ["owner.key"]


def test_a_working_owner_file_is_kept_and_its_mode_put_right(private_ctx):
    ensure_owner(private_ctx)
    before = private_ctx.layout.owner_key.read_text()
    private_ctx.layout.owner_key.chmod(0o644)
    ensure_owner(private_ctx)
    assert private_ctx.layout.owner_key.read_text() == before
    assert private_ctx.layout.owner_key.stat().st_mode & 0o777 == 0o600
    assert len(owner_client(private_ctx).get("/keys").json()) == 1


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"shoal_something-else"])
def test_a_lost_or_damaged_owner_file_is_replaced_and_the_old_key_revoked(private_ctx, content):
    ensure_owner(private_ctx)
    old = owner_client(private_ctx)
    if content is None:
        private_ctx.layout.owner_key.unlink()
    else:
        private_ctx.layout.owner_key.write_bytes(content)
    ensure_owner(private_ctx)
    assert old.get("/auth/me").status_code == 401
    keys = owner_client(private_ctx).get("/keys").json()
    assert [(k["name"], k["revoked_at"] is None) for k in keys] == [(OWNER_KEY_NAME, True), (OWNER_KEY_NAME, False)]


def test_another_persons_key_in_the_owner_file_is_replaced(private_ctx):
    ensure_owner(private_ctx)
    private_ctx.layout.owner_key.write_text(add_person(private_ctx, "guest@example.org").key)
    ensure_owner(private_ctx)
    assert owner_client(private_ctx).get("/auth/me").json()["email"] == "owner@localhost"


def test_a_deleted_default_workspace_is_not_made_again(private_ctx):
    ensure_owner(private_ctx)
    assert owner_client(private_ctx).delete("/workspaces/default").status_code == 204
    private_ctx.layout.owner_key.unlink()
    ensure_owner(private_ctx)
    assert owner_client(private_ctx).get("/workspaces").json() == []


def test_the_owner_file_does_not_open_a_server_on_the_network(private_ctx):
    ensure_owner(private_ctx)
    private_ctx.private = False
    ensure_owner(private_ctx)
    assert code(owner_client(private_ctx).get("/auth/me")) == "key_expired"
    private_ctx.private = True
    ensure_owner(private_ctx)
    assert owner_client(private_ctx).get("/auth/me").status_code == 200


def test_a_shared_server_has_neither_owner_nor_file(ctx, stranger):
    ensure_owner(ctx)
    assert not ctx.layout.owner_key.exists()
    body = {"email": "x@example.org", "password": "long enough, this"}
    body["setup_code"] = ctx.layout.setup_code.read_text().strip()
    assert stranger.post("/auth/sign-up", body).json()["user"]["is_admin"]
