"""Admin actions through the API: accounts are created, changed and disabled; limits apply at once and after a restart."""

import pytest
from sqlalchemy import select, update

from shoal.core.people import Scope
from shoal.core.settings import ServerSettings
from shoal.server.models.users import SessionRow, User
from shoal.server.people.sign_in import start_session
from shoal.testing.server import AppClient, add_job, add_key, add_person

PASSWORD = "long enough, this"


@pytest.fixture
def boss(ctx):
    return add_person(ctx, "boss@example.org", is_admin=True)


@pytest.fixture
def as_boss(app, boss):
    return AppClient(app, boss.key)


def change(client, user, **body):
    return client.request("PATCH", f"/admin/users/{user}", json=body)


def code(answer):
    return answer.json()["error"]["code"]


def sign_in(app, email, password=PASSWORD):
    return AppClient(app).post("/auth/sign-in", {"email": email, "password": password})


def test_everyone_is_listed_with_what_they_have(ctx, as_boss, anna, berta):
    add_job(ctx, anna)
    found = {a["email"]: a for a in as_boss.get("/admin/users").json()}
    assert list(found) == ["anna@example.org", "berta@example.org", "boss@example.org"]
    assert (found[anna.email]["jobs"], found[anna.email]["workspaces"]) == (1, 1)
    assert found["boss@example.org"]["is_admin"] and not found[anna.email]["is_admin"]
    assert "password_hash" not in found[anna.email] and found[anna.email]["has_password"] is False


def test_an_account_made_by_an_admin_works_and_starts_no_session(ctx, app, as_boss):
    made = as_boss.post("/admin/users", {"email": " New@Example.org ", "password": PASSWORD, "name": "New"})
    assert (made.status_code, made.json()["email"], made.json()["is_admin"]) == (201, "new@example.org", False)
    with ctx.db.read() as session:
        assert session.scalars(select(SessionRow)).all() == []
    token = sign_in(app, "new@example.org").json()["token"]
    assert [w["name"] for w in AppClient(app, token).get("/workspaces").json()] == ["default"]
    again = as_boss.post("/admin/users", {"email": "new@example.org", "password": PASSWORD})
    assert (again.status_code, code(again)) == (409, "name_taken")
    for bad in ({"email": "no address", "password": PASSWORD}, {"email": "a@b.c", "password": "short"}):
        assert as_boss.post("/admin/users", bad).status_code == 422


def test_a_disabled_account_is_out_at_once_and_back_when_enabled(ctx, app, as_boss):
    as_boss.post("/admin/users", {"email": "new@example.org", "password": PASSWORD})
    token = sign_in(app, "new@example.org").json()["token"]
    key = AppClient(app, token).post("/keys", {"name": "k"}).json()["key"]
    gone = change(as_boss, "new@example.org", disabled=True)
    assert gone.status_code == 200 and gone.json()["disabled_at"]
    assert AppClient(app, token).get("/auth/me").status_code == 401
    refused = AppClient(app, key).get("/auth/me")
    assert (refused.status_code, code(refused)) == (403, "forbidden") and "disabled" in refused.text
    assert sign_in(app, "new@example.org").status_code == 403
    assert sign_in(app, "new@example.org", "a wrong password").status_code == 401
    assert change(as_boss, "new@example.org", disabled=True).json()["disabled_at"] == gone.json()["disabled_at"]
    assert change(as_boss, "new@example.org", disabled=False).json()["disabled_at"] is None
    assert AppClient(app, key).get("/auth/me").status_code == 200
    assert AppClient(app, token).get("/auth/me").status_code == 401, "ended sessions stay ended"


def test_a_session_of_a_disabled_account_is_refused_even_if_it_was_left(ctx, app, as_boss, anna):
    session = ctx.db.write(lambda s: start_session(s, s.get_one(User, anna.user_id)))
    ctx.db.write(
        lambda s: s.execute(update(User).where(User.id == anna.user_id).values(disabled_at=User.created_at)) and None
    )
    assert AppClient(app, session.token).get("/auth/me").status_code == 403


def test_admins_are_made_and_unmade_but_never_the_last(ctx, app, as_boss, boss, anna):
    assert code(change(as_boss, boss.user_id, is_admin=False)) == "not_allowed_now"
    assert code(change(as_boss, boss.user_id, disabled=True)) == "not_allowed_now"
    assert change(as_boss, anna.email, is_admin=True).json()["is_admin"]
    assert AppClient(app, anna.key).get("/admin/users").status_code == 200
    assert code(change(as_boss, boss.user_id, disabled=True)) == "not_allowed_now", "not the one in use"
    assert change(as_boss, boss.user_id, is_admin=False).status_code == 200
    assert as_boss.get("/admin/users").status_code == 403
    assert code(change(AppClient(app, anna.key), anna.user_id, is_admin=False)) == "not_allowed_now"


def test_a_disabled_admin_does_not_count_as_one(ctx, as_boss, boss, anna):
    change(as_boss, anna.email, is_admin=True)
    assert change(as_boss, anna.email, disabled=True).status_code == 200
    assert code(change(as_boss, boss.user_id, is_admin=False)) == "not_allowed_now"


def test_a_new_password_ends_the_sessions_of_before(app, as_boss):
    as_boss.post("/admin/users", {"email": "new@example.org", "password": PASSWORD})
    token = sign_in(app, "new@example.org").json()["token"]
    path = "/admin/users/new@example.org/password"
    assert as_boss.put(path, {"password": "short"}).status_code == 422
    assert as_boss.put(path, {"password": "another long one"}).status_code == 200
    assert AppClient(app, token).get("/auth/me").status_code == 401
    assert sign_in(app, "new@example.org").status_code == 401
    assert sign_in(app, "new@example.org", "another long one").status_code == 200


def test_an_account_that_is_not_there_is_not_found(as_boss):
    assert change(as_boss, "ghost@example.org", is_admin=True).status_code == 404
    assert as_boss.put("/admin/users/ghost/password", {"password": PASSWORD}).status_code == 404


def test_an_admins_key_without_the_admin_scope_is_no_admins(ctx, app, boss):
    limited = AppClient(app, add_key(ctx, boss, "limited", scopes=[Scope.READ, Scope.WRITE]))
    assert limited.get("/admin/users").status_code == 403
    assert limited.request("PATCH", "/admin/limits", json={"sign_up": True}).status_code == 403


def test_limits_hold_at_once_and_after_a_restart(ctx, app, as_boss):
    before = as_boss.get("/admin/limits").json()
    assert (before["max_source_mb"], before["sign_up"], before["fixed"]["store"]) == (512, False, "the data directory")
    assert before["fixed"]["slots"] == "auto"
    changed = as_boss.request(
        "PATCH", "/admin/limits", json={"max_source_mb": 1, "sign_up": True, "node_timeout_s": 12.5}
    )
    assert changed.json() == before | {"max_source_mb": 1, "sign_up": True, "node_timeout_s": 12.5, "lease_s": 12.5}
    assert AppClient(app).post("/auth/sign-up", {"email": "x@example.org", "password": PASSWORD}).status_code == 201
    file = {"path": "big.py", "size": 2 << 20, "chunks": [{"hash": "0" * 64, "size": 2 << 20}]}
    too_large = as_boss.post("/workspaces/default/sources", {"manifest": {"files": [file]}})
    assert too_large.status_code == 413
    stored = ServerSettings.load(ctx.layout)
    assert (stored.max_source_mb, stored.sign_up, stored.node_timeout_s) == (1, True, 12.5)
    old_name = as_boss.request("PATCH", "/admin/limits", json={"lease_s": 20})
    assert (old_name.json()["node_timeout_s"], old_name.json()["lease_s"]) == (20, 20)


def test_a_limit_out_of_bounds_changes_nothing(ctx, as_boss):
    for bad in ({"max_source_mb": 0}, {"lease_s": 1}, {"stop_grace_s": -1}, {"port": 80}, {"sign_up": "perhaps"}):
        answer = as_boss.request("PATCH", "/admin/limits", json={"max_import_gb": 7} | bad)
        assert answer.status_code == 422, bad
    assert as_boss.get("/admin/limits").json()["max_import_gb"] == 200
    assert not ctx.layout.settings_file.exists()


def test_what_the_environment_says_is_not_written_down(ctx, as_boss, monkeypatch):
    monkeypatch.setenv("SHOAL_SLOTS", "3")
    as_boss.request("PATCH", "/admin/limits", json={"max_import_gb": 7})
    assert ctx.layout.settings_file.read_text() == "max_import_gb = 7\n"


def test_sessions_are_listed_and_ended_one_by_one_or_all(ctx, app, anna, berta):
    tokens = [ctx.db.write(lambda s: start_session(s, s.get_one(User, anna.user_id), program="Firefox on Linux")).token
              for _ in range(4)]  # fmt: skip
    me, other = (AppClient(app, token) for token in tokens[:2])
    found = me.get("/auth/sessions").json()
    assert [s["current"] for s in found].count(True) == 1 and len(found) == 4
    assert {s["program"] for s in found} == {"Firefox on Linux"}
    theirs = other.get("/auth/sessions").json()
    ended = next(s["id"] for s in theirs if s["current"])
    assert AppClient(app, berta.key).delete(f"/auth/sessions/{ended}").status_code == 404
    assert me.delete(f"/auth/sessions/{ended}").status_code == 204
    assert other.get("/auth/me").status_code == 401
    assert me.delete(f"/auth/sessions/{ended}").status_code == 404
    assert me.delete("/auth/sessions").status_code == 204
    assert len(me.get("/auth/sessions").json()) == 1 and AppClient(app, tokens[3]).get("/auth/me").status_code == 401


def test_a_person_changes_their_own_name(app, anna):
    me = AppClient(app, anna.key)
    assert me.request("PATCH", "/auth/me", json={"name": " Anna A. "}).json()["name"] == "Anna A."
    assert me.request("PATCH", "/auth/me", json={"name": "a\x1bb"}).status_code == 422
    assert me.get("/auth/me").json()["name"] == "Anna A."
