"""Lost passwords and verified addresses, by mails to a real SMTP server."""

import re

import pytest
from sqlalchemy import select
from test_mail import post  # noqa: F401
from web_browser import Browser

from shoal.core.errors import NotAllowedNow, NotFound, NotSignedIn, TooManyTries
from shoal.core.people import KeyCreate, PasswordRecovery, Scope, SignIn, SignUp
from shoal.server.mail import Mailer
from shoal.server.models.audit import AuditRow
from shoal.server.models.users import MailCode, User
from shoal.server.people import keys, recovery, sign_in
from shoal.server.policy import Principal
from shoal.testing.engines import eventually

OLD, NEW, ADA = "a long password", "a longer password", "ada@example.org"


@pytest.fixture
def mails(ctx, post):  # noqa: F811
    """Ada's account on a server that sends mail; the welcome has arrived."""
    ctx.mail = Mailer(post.url, "shoal@example.org", pauses_s=(0.0, 0.0))
    ctx.public_url = "https://shoal.example.org:8443"
    sign_in.sign_up(ctx, SignUp(email=ADA, password=OLD), caller=None, address="10.0.0.1")
    eventually(lambda: post.letters)
    yield post.letters
    ctx.mail.close()


def newest(mails, count):
    eventually(lambda: len(mails) >= count)
    return re.search(
        r"https://shoal\.example\.org:8443(/\S+/(shoalr_\S+))", mails[-1].get_payload(decode=True).decode()
    ).groups()


def signs_in(ctx, password):
    try:
        return sign_in.sign_in(ctx, SignIn(email=ADA, password=password), address="10.0.0.9")
    except NotSignedIn:
        return None


def recorded(ctx, action):
    """Return the subjects of the entries that the audit log has of this action."""
    with ctx.db.read() as session:
        return list(session.scalars(select(AuditRow.object).where(AuditRow.action == action)))


def principal_of(ctx, token):
    with ctx.db.read() as session:
        row = session.scalars(select(User).where(User.email == ADA)).one()
    return Principal(row.id, row.email, False, frozenset(Scope), "session")


def status_with(app, token):
    return Browser(app).get("/settings.json", headers={"Authorization": f"Bearer {token}"}).status_code


def test_a_lost_password_is_replaced_by_a_link_that_works_once(app, ctx, mails):
    open_session = signs_in(ctx, OLD)
    browser = Browser(app)
    assert "/password-lost" in browser.get("/sign-in").text
    assert "Send a link" in browser.get("/password-lost").text
    known = browser.post("/password-lost", {"email": "Ada@example.org"})
    path, _ = newest(mails, 2)
    assert mails[-1]["To"] == ADA and path.startswith("/recover/")
    assert ADA in browser.get(path).text and ADA in browser.get(path).text, "opening a link uses nothing up"
    assert browser.post(path, {"password": "short"}).status_code == 422
    assert browser.post(path, {"password": "password123"}).status_code == 422, "common passwords are refused here too"
    done = browser.post(path, {"password": NEW})
    assert done.status_code == 200 and "Sign in with it" in done.text
    assert signs_in(ctx, OLD) is None and signs_in(ctx, NEW).user.email_verified
    assert (
        Browser(app).get("/settings.json", headers={"Authorization": f"Bearer {open_session.token}"}).status_code == 401
    )
    assert browser.post(path, {"password": NEW}).status_code == 404
    unknown = browser.post("/password-lost", {"email": "nobody@example.org"})
    assert known.status_code == unknown.status_code == 200
    assert known.text.replace("Ada@", "nobody@") == unknown.text
    assert len(mails) == 2, "nobody else gets mail"
    assert recorded(ctx, "account.recover") == [ADA]


def test_who_made_an_account_with_the_address_of_another_loses_it_with_its_keys(app, ctx, mails):
    """An account whose address was never verified may belong to someone else: its keys end with its password."""
    thief = signs_in(ctx, OLD)
    key = keys.create_key(ctx, principal_of(ctx, thief.token), KeyCreate(name="k"))
    Browser(app).post("/password-lost", {"email": ADA})
    path, _ = newest(mails, 2)
    assert Browser(app).post(path, {"password": NEW}).status_code == 200
    assert status_with(app, key.key) == 401
    assert recorded(ctx, "key.revoke") == ["k"]


def test_keys_of_a_verified_account_outlive_a_lost_password(app, ctx, mails):
    mine = Browser(app)
    mine.post("/sign-in", {"email": ADA, "password": OLD})
    assert mine.post(newest(mails, 1)[0]).status_code == 303
    key = keys.create_key(ctx, principal_of(ctx, signs_in(ctx, OLD).token), KeyCreate(name="k"))
    mine.post("/password-lost", {"email": ADA})
    assert Browser(app).post(newest(mails, 2)[0], {"password": NEW}).status_code == 200
    assert status_with(app, key.key) == 200


def test_codes_are_for_one_purpose_and_expire(ctx, mails):
    _, verification = newest(mails, 1)
    with pytest.raises(NotFound):
        recovery.recover(ctx, PasswordRecovery(code=verification, new_password=NEW), address="10.0.0.2")
    recovery.send_reset(ctx, ADA, address="10.0.0.2")
    _, code = newest(mails, 2)

    def age(session):
        for row in session.scalars(select(MailCode)):
            row.expires_at = row.created_at

    ctx.db.write(age)
    with pytest.raises(NotFound, match="expired"):
        recovery.recover(ctx, PasswordRecovery(code=code, new_password=NEW), address="10.0.0.2")
    assert signs_in(ctx, OLD)


def test_a_mailbox_is_not_filled_and_codes_cannot_be_guessed(ctx, mails):
    for n in range(4):
        recovery.send_reset(ctx, ADA, address=f"10.0.{n}.2")
    newest(mails, 4)
    with pytest.raises(TooManyTries):
        for _ in range(6):
            with pytest.raises(NotFound):
                recovery.check_code(ctx, "shoalr_wrong", address="10.9.0.2")
    assert len(mails) == 4, "the welcome and three others"


def test_an_address_is_verified_only_by_the_one_who_is_signed_in(app, ctx, anna, mails):
    path, _ = newest(mails, 1)
    other = Browser(app).enter(ctx, anna)
    assert other.post(path).status_code == 404
    mine = Browser(app)
    assert mine.post(path).status_code == 401
    mine.post("/sign-in", {"email": ADA, "password": OLD})
    assert "Confirm ada@example.org" in mine.get(path).text
    done = mine.post(path)
    assert done.status_code == 303, done.text
    assert done.headers["location"] == "/settings"
    assert "verified" in mine.get("/settings").text
    with ctx.db.read() as session:
        assert session.scalars(select(User).where(User.email == ADA)).one().email_verified_at is not None
    assert recorded(ctx, "account.verify-email") == [ADA]


def test_links_never_contain_the_host_that_a_request_named(app, ctx, mails):
    Browser(app, base="http://evil.example").post("/password-lost", {"email": ADA}, origin="http://evil.example")
    newest(mails, 2)
    assert "evil" not in mails[-1].get_payload(decode=True).decode()


def test_without_a_mail_server_an_admin_helps(app, ctx, anna):
    assert "admins" in Browser(app).get("/password-lost").text
    with pytest.raises(NotAllowedNow, match="admins"):
        recovery.send_reset(ctx, anna.email, address="10.0.0.2")
