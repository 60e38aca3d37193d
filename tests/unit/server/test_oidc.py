"""Sign-in with a service, against a real issuer: who gets which account, and every answer that must be refused."""

import stat
import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from small_issuer import CLIENT, SECRET, EcKey, RsaKey, jwt, started
from sqlalchemy import select
from web_browser import BASE, Browser

from shoal.core.errors import InvalidSpec, NotAllowedNow, NotSignedIn
from shoal.core.people import SignUp, WorkspaceInvite
from shoal.core.schema import utcnow
from shoal.server.models.audit import AuditRow
from shoal.server.models.users import Identity, User
from shoal.server.people import invitations, sign_in
from shoal.server.people.oidc import identities
from shoal.server.people.oidc.id_token import Expected, verify
from shoal.server.people.oidc.services import make
from shoal.server.policy import hash_token

PASSWORD = "a long password"
ADA = "ada@example.org"


@pytest.fixture(scope="module")
def key():
    return RsaKey("first")


@pytest.fixture
def issuer(ctx, key):
    """The issuer 'company' of a server that has its first account."""
    issuer = started(key)
    add_service(ctx, issuer)
    made = SignUp(email="first@example.org", password=PASSWORD)
    sign_in.sign_up(ctx, made, caller=None, address="10.0.0.1")
    yield issuer
    issuer.shutdown()
    issuer.server_close()


def add_service(ctx, issuer, **more):
    given = {"issuer": issuer.url, "client_id": CLIENT, "client_secret": SECRET, "title": "Example SSO"} | more
    ctx.sign_in_services.save(make("company", **given))


def go(browser, path="/sign-in/with/company"):
    """Follow a sign-in to the issuer and back; return the console's answer."""
    away = browser.get(path)
    assert away.status_code == 303, away.text
    back = httpx.get(away.headers["location"], follow_redirects=False).headers["location"]
    assert back.startswith(f"{BASE}/sign-in/callback/company?")
    return browser.get(back.removeprefix(BASE))


def me(browser):
    answer = browser.get("/settings.json")
    return answer.json()["user"]["email"] if answer.status_code == 200 else None


def test_a_person_with_an_address_of_the_domain_gets_an_account_and_the_same_one_again(app, ctx, issuer):
    add_service(ctx, issuer, domains=["Example.org"])
    issuer.sign_in(sub="17", email="Ada@Example.org", name="Ada")
    browser = Browser(app)
    assert "Continue with Example SSO" in browser.get("/sign-in").text
    answer = go(browser, "/sign-in/with/company?next=/keys")
    assert (answer.status_code, answer.headers["location"]) == (303, "/keys")
    assert me(browser) == ADA
    issuer.sign_in(sub="17", email="renamed@elsewhere.org")  # the subject counts, not the address
    again = Browser(app)
    go(again)
    assert me(again) == ADA
    with ctx.db.read() as session:
        user = session.scalars(select(User).where(User.email == ADA)).one()
        assert (user.name, user.password_hash, user.is_admin) == ("Ada", None, False)
        rows = session.scalars(select(AuditRow).where(AuditRow.actor == ADA)).all()
    assert {"account.create", "identity.connect", "session.start"} <= {row.action for row in rows}
    assert stat.S_IMODE(ctx.layout.sign_in_services.stat().st_mode) == 0o600


def test_others_need_an_invitation_and_unverified_addresses_are_refused(app, ctx, anna, issuer):
    issuer.sign_in(email="eva@elsewhere.org")
    stranger = Browser(app)
    answer = go(stranger)
    assert answer.status_code == 403 and "invitation" in answer.text and me(stranger) is None
    link = invitations.create(ctx, anna.access(), WorkspaceInvite())
    assert "/sign-in/with/company?invitation=shoali_" in stranger.get(link.path).text
    issuer.sign_in(email="eva@elsewhere.org", email_verified=False)
    assert "not verified" in go(stranger, f"/sign-in/with/company?invitation={link.code}").text
    issuer.sign_in(email="eva@elsewhere.org")
    answer = go(stranger, f"/sign-in/with/company?invitation={link.code}")
    assert answer.headers["location"] == f"/w/{anna.workspace_id}/jobs" and me(stranger) == "eva@elsewhere.org"


def test_an_account_with_a_password_is_connected_only_by_its_owner(app, ctx, issuer):
    add_service(ctx, issuer, domains=["example.org"])
    issuer.sign_in(sub="1", email="first@example.org")
    stranger = Browser(app)
    refused = go(stranger)
    assert refused.status_code == 409 and "Settings" in refused.text and me(stranger) is None
    owner = Browser(app)
    owner.post("/sign-in", {"email": "first@example.org", "password": PASSWORD})
    assert "/settings/connect/company" in owner.get("/settings").text
    assert go(owner, "/settings/connect/company").headers["location"] == "/settings"
    go(stranger)
    assert me(stranger) == "first@example.org"
    principal_id = owner.get("/settings.json").json()["user"]["id"]
    assert principal_id == stranger.get("/settings.json").json()["user"]["id"]
    assert owner.post("/settings/disconnect/company").status_code in (200, 204, 303)
    assert go(Browser(app)).status_code == 409
    with ctx.db.read() as session:
        actions = session.scalars(select(AuditRow.action).where(AuditRow.action.startswith("identity."))).all()
    assert actions == ["identity.connect", "identity.disconnect"]


def test_an_account_at_a_service_belongs_to_one_account_here(app, ctx, anna, berta, issuer):
    issuer.sign_in(sub="1", email="x@example.org")
    go(Browser(app).enter(ctx, anna), "/settings/connect/company")
    answer = go(Browser(app).enter(ctx, berta), "/settings/connect/company")
    assert answer.status_code == 409 and "already connected" in answer.text
    with ctx.db.read() as session:
        assert [row.user_id for row in session.scalars(select(Identity))] == [anna.user_id]
    with pytest.raises(NotAllowedNow, match="only way"):
        identities.disconnect(ctx, anna.access().principal, "company")


def test_a_verified_address_is_enough_to_connect(app, ctx, issuer):
    def verified(session):
        session.scalars(select(User).where(User.email == "first@example.org")).one().email_verified_at = utcnow()

    ctx.db.write(verified)
    issuer.sign_in(sub="1", email="first@example.org")
    browser = Browser(app)
    go(browser)
    assert me(browser) == "first@example.org"


def test_the_answer_counts_only_in_the_browser_that_began_and_once(app, ctx, issuer):
    add_service(ctx, issuer, domains=["example.org"])
    issuer.sign_in(email=ADA)
    mine, victim = Browser(app), Browser(app)
    away = mine.get("/sign-in/with/company").headers["location"]
    back = httpx.get(away).headers["location"].removeprefix(BASE)
    assert victim.get(back).status_code == 401 and me(victim) is None
    victim.get("/sign-in/with/company")  # has a sign-in of its own under way
    assert victim.get(back).status_code == 401 and me(victim) is None
    assert mine.get(back).status_code == 303
    again = mine.get(back)
    assert again.status_code == 401 and "Begin again" in again.text
    query = parse_qs(urlsplit(away).query)
    assert query["redirect_uri"] == [f"{BASE}/sign-in/callback/company"] and len(query["code_challenge"][0]) == 43


def test_refusals_of_the_issuer_are_shown_and_recorded(app, ctx, issuer):
    issuer.refuses = True
    answer = go(Browser(app))
    assert answer.status_code == 401 and "access_denied" in answer.text
    issuer.refuses = False
    add_service(ctx, issuer, client_secret="wrong")
    answer = go(Browser(app))
    assert "invalid_client" in answer.text
    with ctx.db.read() as session:
        failed = session.scalars(select(AuditRow.detail).where(AuditRow.result == "failed")).all()
    assert len(failed) == 2 and all("Example SSO" in detail for detail in failed)
    issuer.shutdown()
    issuer.server_close()
    answer = Browser(app).get("/sign-in/with/company")
    ctx.issuers._known.clear()
    answer = Browser(app).get("/sign-in/with/company")
    assert answer.status_code == 503 and "cannot be reached" in answer.text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"aud": "someone-else"}, "another program"),
        ({"aud": [CLIENT, "other"]}, "another program"),
        ({"nonce": "old"}, "another sign-in"),
        ({"exp": 1000}, "expired"),
        ({"iat": 10**11}, "not valid yet"),
        ({"sub": ""}, "names nobody"),
        ({"exp": "soon"}, "time"),
    ],
)
def test_a_token_for_something_else_is_refused(app, ctx, issuer, change, why):
    issuer.sign_in(sub="1", email="first@example.org")
    issuer.change = change
    browser = Browser(app)
    answer = go(browser)
    assert answer.status_code == 401 and why in answer.text and me(browser) is None


def test_signatures(key):
    other, curve = RsaKey("first"), EcKey("curve")
    claims = {"iss": "i", "aud": "c", "nonce": "n", "sub": "s", "iat": time.time(), "exp": time.time() + 9}
    expected = Expected("i", "c", "n", time.time())
    keys = [key.public(), curve.public()]

    def claims_of(token):
        return verify(token, lambda kid: [one for one in keys if one["kid"] == kid], expected)

    assert claims_of(jwt(key, claims))["sub"] == claims_of(jwt(curve, claims, "ES256"))["sub"] == "s"
    head, body, signature = jwt(key, claims).split(".")
    none = jwt(key, claims, "none").rpartition(".")[0] + "."
    forged = jwt(key, claims | {"sub": "admin"}).split(".")[1]
    for token in (jwt(other, claims), none, f"{head}.{forged}.{signature}", f"{head}.{body}.", "x", jwt(key, claims, "HS256"),
                  jwt(key, claims, "ES256"), jwt(curve, claims, "RS256"), jwt(key, claims, crit=["x"])):  # fmt: skip
        with pytest.raises(NotSignedIn):
            claims_of(token)


def test_changed_keys_are_fetched_again(app, ctx, issuer):
    add_service(ctx, issuer, domains=["example.org"])
    issuer.sign_in(email=ADA)
    go(Browser(app))
    issuer.key = RsaKey("second")
    assert go(Browser(app)).status_code == 401, "not asked again at once: anyone could make up key ids"
    for known in ctx.issuers._known.values():
        known.keys_at -= 60
    browser = Browser(app)
    go(browser)
    assert me(browser) == ADA


def test_a_code_of_the_console_signs_in_a_terminal_once(app, ctx, anna, browser):
    shown = browser.post("/settings/terminal").text
    code = next(word for word in shown.replace('"', " ").split() if word.startswith("shoals_"))
    with ctx.db.read() as session:
        row = session.scalars(
            select(sign_in.SessionRow).where(sign_in.SessionRow.secret_hash == hash_token(code))
        ).one()
    assert row.user_id == anna.user_id and (row.expires_at - utcnow()).total_seconds() <= 120


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"issuer": "http://id.example.org"}, "https"),
        ({"issuer": "https://user@id.example.org"}, "https"),
        ({"issuer": ""}, "https"),
        ({"issuer": "https://id.example.org", "client_id": " "}, "client id"),
        ({"issuer": "https://id.example.org", "domains": ["ada@example.org"]}, "domain"),
    ],
)
def test_a_service_that_cannot_work_is_refused(given, why):
    with pytest.raises(InvalidSpec, match=why):
        make("company", **({"client_id": "x"} | given))
    with pytest.raises(InvalidSpec, match="tenant"):
        make("microsoft", client_id="x")
    assert make("google", client_id="x").issuer == "https://accounts.google.com"


def test_a_private_server_has_no_services(private_ctx):
    from shoal.testing.server import make_app

    private_ctx.sign_in_services.save(make("google", client_id="x"))
    browser = Browser(make_app(private_ctx))
    assert "Continue with" not in browser.get("/sign-in").text
    assert browser.get("/sign-in/with/google").status_code == 409
