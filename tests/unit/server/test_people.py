"""Signing up, in and out; guessing is slow, and what is stored opens nothing."""

import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from shoal.core.errors import TooManyTries, Unreachable
from shoal.core.people import Scope
from shoal.core.schema import utcnow
from shoal.core.settings import ServerSettings
from shoal.server.audit import service
from shoal.server.models.users import SessionRow, User
from shoal.server.people.accounts import ensure_owner
from shoal.server.people.guards import Guards, Passwords, Tries
from shoal.server.policy import hash_token
from shoal.testing.server import AppClient, add_key, add_person, make_app

PASSWORD = "correct horse battery"


def sign_up(client, email="first@example.org", password=PASSWORD):
    return client.post("/auth/sign-up", {"email": email, "password": password, "name": "Some One"})


def sign_in(client, email="first@example.org", password=PASSWORD):
    return client.post("/auth/sign-in", {"email": email, "password": password})


def code(response):
    return response.json()["error"]["code"]


def test_the_first_account_is_an_admins_and_comes_with_a_workspace(app, stranger):
    body = sign_up(stranger, "First@Example.org").json()
    assert body["user"]["email"] == "first@example.org"
    assert body["user"]["is_admin"]
    me = AppClient(app, body["token"])
    assert me.get("/auth/me").json() == body["user"]
    assert [w["name"] for w in me.get("/workspaces").json()] == ["default"]
    assert me.get("/workspaces").json()[0]["role"] == "owner"


def test_a_second_account_needs_an_admin(ctx, app, stranger):
    admin = AppClient(app, sign_up(stranger).json()["token"])
    refused = sign_up(stranger, "second@example.org")
    assert (refused.status_code, code(refused)) == (403, "forbidden")
    made = sign_up(admin, "second@example.org")
    assert made.status_code == 201
    assert not made.json()["user"]["is_admin"]
    assert sign_up(AppClient(app, made.json()["token"]), "third@example.org").status_code == 403


def test_an_admins_key_without_the_admin_scope_makes_no_accounts(ctx, app):
    boss = add_person(ctx, "boss@example.org", is_admin=True)
    ctx.db.write(lambda s: s.execute(update(User).values(password_hash="x")))
    limited = AppClient(app, add_key(ctx, boss, "limited", scopes=[Scope.READ, Scope.WRITE]))
    assert sign_up(limited, "x@example.org").status_code == 403
    assert sign_up(AppClient(app, boss.key), "x@example.org").status_code == 201


def test_an_open_server_takes_anyone_once(ctx):
    app = make_app(replace(ctx, settings=ServerSettings(sign_up=True)))
    client = AppClient(app)
    assert sign_up(client).json()["user"]["is_admin"]
    assert not sign_up(client, "second@example.org").json()["user"]["is_admin"]
    again = sign_up(client, "SECOND@example.org")
    assert (again.status_code, code(again)) == (409, "name_taken")


def test_the_first_account_of_a_shared_server_needs_its_setup_code(ctx, app, stranger):
    ensure_owner(ctx)
    file = ctx.layout.setup_code
    assert file.stat().st_mode & 0o777 == 0o600
    given = {"email": "first@example.org", "password": PASSWORD}
    for wrong in ("", "0000000000000000"):
        refused = stranger.post("/auth/sign-up", given | {"setup_code": wrong})
        assert refused.status_code == 403 and "setup code" in refused.json()["error"]["message"]
    before = file.read_text()
    ensure_owner(ctx)
    assert file.read_text() == before, "a restart does not change it"
    made = stranger.post("/auth/sign-up", given | {"setup_code": before.strip()})
    assert made.json()["user"]["is_admin"]
    assert not file.exists()
    ensure_owner(ctx)
    assert not file.exists()


def test_a_stale_key_in_the_header_does_not_keep_anyone_from_signing_up(app):
    assert sign_up(AppClient(app, "shoal_long-forgotten")).status_code == 201


def test_of_many_who_sign_up_at_once_exactly_one_becomes_the_first(app):
    answers = []

    def race(n):
        answers.append(sign_up(AppClient(app), f"p{n}@example.org"))

    threads = [threading.Thread(target=race, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(a.status_code for a in answers) == [201] + [403] * 5


def test_a_private_server_lets_no_stranger_sign_up(private_ctx):
    client = AppClient(make_app(private_ctx))
    assert sign_up(client).status_code == 403
    ensure_owner(private_ctx)
    owner = AppClient(make_app(private_ctx), private_ctx.layout.owner_key.read_text().strip())
    assert sign_up(client).status_code == 403
    assert sign_up(owner).status_code == 201


def test_a_private_server_opened_to_the_network_takes_a_first_admin(private_ctx):
    ensure_owner(private_ctx)
    opened = replace(private_ctx, private=False)
    assert sign_up(AppClient(make_app(opened))).json()["user"]["is_admin"]


@pytest.mark.parametrize("email", ["", "x", "@x.org", "x@", "x y@z.org", "a@.b", "a\x07@b.org", "a\nb@c.org"])
def test_odd_addresses_are_refused(stranger, email):
    assert sign_up(stranger, email).status_code == 422


def test_short_passwords_are_refused_without_being_repeated(stranger):
    answer = sign_up(stranger, password="hunter2")
    assert answer.status_code == 422
    assert "hunter2" not in answer.text


def test_signing_in_gives_a_session_of_thirty_days_that_signing_out_ends(ctx, app, stranger):
    sign_up(stranger)
    body = sign_in(stranger, " FIRST@example.org").json()
    assert body["token"].startswith("shoals_")
    with ctx.db.read() as session:
        row = session.scalars(select(SessionRow).where(SessionRow.secret_hash == hash_token(body["token"]))).one()
    assert abs(row.expires_at - utcnow() - timedelta(days=30)) < timedelta(minutes=1)
    me = AppClient(app, body["token"])
    assert me.get("/auth/me").status_code == 200
    assert me.post("/auth/sign-out").status_code == 204
    assert me.get("/auth/me").status_code == 401


def test_signing_out_with_a_key_is_refused_rather_than_pretended(as_anna):
    answer = as_anna.post("/auth/sign-out")
    assert (answer.status_code, code(answer)) == (409, "not_allowed_now")
    assert as_anna.get("/auth/me").status_code == 200


def test_an_expired_session_is_told_apart_and_swept_at_the_next_sign_in(ctx, app, stranger):
    token = sign_up(stranger).json()["token"]
    ctx.db.write(lambda s: s.execute(update(SessionRow).values(expires_at=utcnow() - timedelta(seconds=1))))
    assert code(AppClient(app, token).get("/auth/me")) == "key_expired"
    sign_in(stranger)
    with ctx.db.read() as session:
        assert len(session.scalars(select(SessionRow)).all()) == 1


def test_wrong_password_and_unknown_e_mail_look_the_same(stranger):
    sign_up(stranger)
    wrong, unknown = sign_in(stranger, password="wrong-password"), sign_in(stranger, "nobody@example.org")
    assert wrong.status_code == unknown.status_code == 401
    assert wrong.json() == unknown.json()


def test_someone_without_a_password_cannot_sign_in_by_any(anna, stranger):
    for guess in ("", "None", "nobody's password"):
        assert sign_in(stranger, anna.email, guess).status_code == 401


def test_after_five_failures_even_the_right_password_waits(stranger):
    sign_up(stranger)
    for _ in range(5):
        assert sign_in(stranger, password="wrong-password").status_code == 401
    answer = sign_in(stranger)
    assert (answer.status_code, code(answer)) == (429, "too_many_tries")
    assert sign_in(stranger, "someone-else@example.org").status_code == 401


def test_one_address_gets_twenty_failures_whatever_the_e_mails(app):
    here, there = AppClient(app, address="192.0.2.1"), AppClient(app, address="192.0.2.2")
    assert {sign_in(here, f"u{n}@example.org").status_code for n in range(20)} == {401}
    assert sign_in(here, "u21@example.org").status_code == 429
    assert sign_in(there, "u21@example.org").status_code == 401


def test_a_stranger_cannot_lock_anyone_out(app, stranger):
    sign_up(stranger)
    attacker = AppClient(app, address="192.0.2.66")
    assert [sign_in(attacker, password=f"wrong-{n}").status_code for n in range(7)] == [401] * 5 + [429] * 2
    assert sign_in(stranger).status_code == 200


def test_many_addresses_that_guess_together_are_stopped_and_the_owner_is_not(app, stranger):
    sign_up(stranger)
    found = [sign_in(AppClient(app, address=f"192.0.2.{n}"), password="wrong").status_code for n in range(25)]
    assert found == [401] * 20 + [429] * 5
    assert sign_in(stranger).status_code == 200, "from where they signed in before"
    assert sign_in(AppClient(app, address="198.51.100.1")).status_code == 429


def test_addresses_of_one_ipv6_network_count_together(app):
    found = [sign_in(AppClient(app, address=f"2001:db8::{n:x}"), f"u{n}@example.org").status_code for n in range(22)]
    assert found == [401] * 20 + [429] * 2


@pytest.mark.parametrize(
    "password",
    ["1234567890", "Password123!", "p@ssw0rd2024", "qwertyuiop", "xxxxxxxxxxxx", "!!!first2024", "!!!monkey9999"],
)
def test_the_passwords_that_are_guessed_first_are_refused(stranger, password):
    answer = sign_up(stranger, password=password)
    assert (answer.status_code, code(answer)) == (422, "invalid_spec")
    assert password not in answer.text


def test_a_common_password_is_refused_at_a_change_too(app, stranger):
    client = AppClient(app, sign_up(stranger).json()["token"])
    answer = client.post("/auth/password", {"old_password": PASSWORD, "new_password": "Password123!"})
    assert (answer.status_code, code(answer)) == (422, "invalid_spec")


@pytest.mark.parametrize("password", [PASSWORD, "Tr4vel-with-9-otters", "9274610384", "zqjxkvbpwm"])
def test_other_passwords_are_taken(stranger, password):
    assert sign_up(stranger, password=password).status_code == 201


def test_tries_are_forgotten_after_a_minute_and_after_success():
    now = [0.0]
    tries = Tries(clock=lambda: now[0])
    for _ in range(5):
        tries.begin(email="a", address="x")
    with pytest.raises(TooManyTries):
        tries.begin(email="a", address="x")
    now[0] = 60.0
    for _ in range(4):
        tries.begin(email="a", address="x")
    tries.forgive(email="a", address="x")
    for _ in range(5):
        tries.begin(email="a", address="x")
    with pytest.raises(TooManyTries):
        tries.begin(email="a", address="x")


def test_tries_under_way_count_so_that_guessing_in_parallel_gains_nothing():
    tries, passed = Tries(), []

    def guess():
        try:
            tries.begin(email="a", address="x")
            passed.append(1)
        except TooManyTries:
            pass

    threads = [threading.Thread(target=guess) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == 5


def test_changing_the_password_ends_all_other_sessions(app, stranger):
    first, second = sign_up(stranger).json()["token"], sign_in(stranger).json()["token"]
    me, elsewhere = AppClient(app, second), AppClient(app, first)
    wrong = me.post("/auth/password", {"old_password": "not-it-at-all", "new_password": "another good one"})
    assert wrong.status_code == 401
    body = {"old_password": PASSWORD, "new_password": "another good one"}
    assert me.post("/auth/password", body).status_code == 204
    assert me.get("/auth/me").status_code == 200
    assert elsewhere.get("/auth/me").status_code == 401
    assert sign_in(stranger).status_code == 401
    assert sign_in(stranger, password="another good one").status_code == 200


def test_old_passwords_cannot_be_guessed_through_the_change_either(app, stranger):
    me = AppClient(app, sign_up(stranger).json()["token"])
    guess = {"old_password": "not-it-at-all", "new_password": "another good one"}
    assert [me.post("/auth/password", guess).status_code for _ in range(6)] == [401] * 5 + [429]


def test_the_owner_gets_an_account_and_keeps_what_they_made(private_ctx):
    ensure_owner(private_ctx)
    app, key = make_app(private_ctx), private_ctx.layout.owner_key.read_text().strip()
    owner = AppClient(app, key)
    before = owner.get("/auth/me").json()
    assert owner.post("/workspaces/default/invitations", {}).status_code == 201
    weak = owner.post("/auth/owner", {"email": "ada@example.org", "password": "1234567890"})
    assert weak.status_code == 422
    claimed = owner.post("/auth/owner", {"email": "Ada@example.org", "password": PASSWORD, "name": "Ada"})
    assert claimed.json() == before | {"email": "ada@example.org", "name": "Ada"}
    assert owner.post("/auth/owner", {"email": "eve@example.org", "password": PASSWORD}).status_code == 409
    assert ("account.claim", "ada@example.org") in [
        (e.action, e.object) for e in service.list_entries(private_ctx, limit=9)
    ]

    (made,) = owner.get("/workspaces/default/invitations").json()
    assert made["created_by"] == "ada@example.org"

    shared = replace(private_ctx, private=False)
    ensure_owner(shared)
    assert not shared.layout.setup_code.exists(), "there is an admin already"
    stranger = AppClient(make_app(shared))
    assert AppClient(make_app(shared), key).get("/auth/me").status_code == 401, "the key file opens no shared server"
    token = sign_in(stranger, "ada@example.org").json()["token"]
    assert AppClient(make_app(shared), token).get("/auth/me").json()["id"] == before["id"]
    assert sign_up(stranger, "eve@example.org").status_code == 403

    ensure_owner(private_ctx)  # private again: the same owner, not a second one
    again = AppClient(app, private_ctx.layout.owner_key.read_text().strip())
    assert again.get("/auth/me").json()["id"] == before["id"]


def test_the_owner_of_a_private_server_has_no_password_to_change(private_ctx):
    ensure_owner(private_ctx)
    owner = AppClient(make_app(private_ctx), private_ctx.layout.owner_key.read_text().strip())
    answer = owner.post("/auth/password", {"old_password": "", "new_password": "another good one"})
    assert answer.status_code == 409


def test_neither_passwords_nor_tokens_are_in_the_database(ctx, stranger):
    token = sign_up(stranger).json()["token"]
    ctx.db.close()
    stored = b"".join(p.read_bytes() for p in ctx.layout.server_dir.glob("shoal.db*"))
    assert b"first@example.org" in stored
    assert PASSWORD.encode() not in stored
    assert token.encode() not in stored
    assert token.removeprefix("shoals_").encode() not in stored
    assert b"$argon2id$" in stored


def test_a_hash_made_at_another_cost_is_renewed_at_sign_in(ctx, stranger):
    sign_up(stranger)

    def stored():
        with ctx.db.read() as session:
            return session.scalars(select(User.password_hash)).one()

    assert "m=8,t=1" in stored()
    ctx.guards = Guards(passwords=Passwords(memory_kib=16, time_cost=1))
    assert sign_in(stranger).status_code == 200
    assert "m=16,t=1" in stored()
    assert sign_in(stranger).status_code == 200


def test_the_cost_of_a_hash_is_what_was_decided():
    assert "$argon2id$v=19$m=19456,t=2,p=1$" in Passwords().hash("x")


def test_hashing_turns_people_away_rather_than_pile_up():
    passwords = Passwords(memory_kib=8, time_cost=1, at_once=1, waiting=0)
    with passwords._turn(), pytest.raises(Unreachable):
        passwords.hash("x")
    passwords.hash("x")


def test_an_unknown_e_mail_takes_as_long_as_a_known_one():
    passwords = Passwords(memory_kib=4096, time_cost=4)
    known = passwords.hash("x")

    def best(hashed):
        def once():
            start = time.thread_time()
            assert not passwords.verify(hashed, "wrong")
            return time.thread_time() - start

        return min(once() for _ in range(5))

    assert 0.5 < best(None) / best(known) < 2.0
