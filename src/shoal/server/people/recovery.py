"""Lost passwords and verified addresses, by a code in a mail. Both need a mail server (the setting `smtp_url`).

A verification counts only for the person who is signed in to the account: otherwise someone could sign up with another person's
address, and that person's click would confirm it.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import NotAllowedNow, NotFound
from shoal.core.ids import new_id
from shoal.core.people import OWNER_EMAIL, PasswordRecovery
from shoal.core.schema import utcnow
from shoal.server.audit.record import of_request, record_action
from shoal.server.context import Context
from shoal.server.edge.public_address import mailed_url
from shoal.server.mail import Letter
from shoal.server.models.users import ApiKey, Identity, MailCode, SessionRow, User
from shoal.server.people import common_passwords
from shoal.server.people.keys import new_token
from shoal.server.policy import Principal, hash_token

logger = logging.getLogger(__name__)
CODE_PREFIX = "shoalr_"
RESET, VERIFY = "reset", "verify"
_LIFE = {RESET: timedelta(hours=1), VERIFY: timedelta(days=3)}
_MOST_AN_HOUR = 3
"""Mails of a kind that a person gets in an hour, so that nobody can fill another person's mailbox."""
_RESET_MAIL = """\
Someone, probably you, asked for a new password for your Shoal account at {url}.

Set it within an hour:

  {url}/recover/{code}

Or in a terminal: shoal password --code --url {url}
The code is: {code}

If it was not you, ignore this mail: your password is unchanged.
"""
_VERIFY_MAIL = """\
Your Shoal account at {url} has this e-mail address. Confirm within three days that it is yours, while you are signed in:

  {url}/settings/verify/{code}

If you have no account there, ignore this mail.
"""


def send_reset(ctx: Context, email: str, *, address: str) -> None:
    """Send a mail with a code for a new password, if there is such an account. The caller cannot notice whether there is."""
    _demand_mail(ctx)
    email = email.strip().lower()
    ctx.guards.tries.begin(email=f"lost password of {email}", address=address)
    with ctx.db.read() as session:
        user = session.scalar(select(User).where(User.email == email, User.disabled_at.is_(None)))
    _send(ctx, user if user is not None and email != OWNER_EMAIL else None, RESET)


def recover(ctx: Context, body: PasswordRecovery, *, address: str) -> str:
    """Set a new password by a code from a mail and end all sessions; return the account's address."""
    ctx.guards.tries.begin(email=f"recovery from {address}", address=address)
    with ctx.db.read() as session:
        email = _usable(session, body.code, RESET).email
    common_passwords.check(body.new_password, email=email)
    hashed = ctx.guards.passwords.hash(body.new_password)

    def work(session: Session) -> str:
        row = _usable(session, body.code, RESET)
        user = session.get_one(User, row.user_id)
        if user.email_verified_at is None:
            _evict(session, user)
        user.password_hash, user.email_verified_at = hashed, utcnow()
        session.execute(delete(MailCode).where(MailCode.user_id == user.id))
        session.execute(delete(SessionRow).where(SessionRow.user_id == user.id))
        who = of_request(session, user.email)
        record_action(session, AuditAction.ACCOUNT_RECOVER, user.email, user.id, actor=who)
        return user.email

    email = ctx.db.write(work)
    ctx.guards.tries.forgive(email=f"recovery from {address}", address=address)
    return email


def _evict(session: Session, user: User) -> None:
    """End the API keys and sign-in services of an account whose address was not verified before.

    Someone else may have made it with this address; its owner by mail must not share it with them.
    """
    for key in session.scalars(select(ApiKey).where(ApiKey.user_id == user.id, ApiKey.revoked_at.is_(None))):
        key.revoked_at = utcnow()
        record_action(session, AuditAction.KEY_REVOKE, key.name, key.id, actor=of_request(session, user.email))
    session.execute(delete(Identity).where(Identity.user_id == user.id))


def check_code(ctx: Context, code: str, *, address: str) -> str:
    """Return the address of the account that a code from a mail is for. An unknown code counts as a failed try."""
    ctx.guards.tries.begin(email=f"recovery from {address}", address=address)
    with ctx.db.read() as session:
        email = _usable(session, code, RESET).email
    ctx.guards.tries.forgive(email=f"recovery from {address}", address=address)
    return email


def send_verification(ctx: Context, principal: Principal) -> None:
    """Send a mail with a link by which the signed-in person proves that the account's address is theirs."""
    _demand_mail(ctx)
    with ctx.db.read() as session:
        user = session.get_one(User, principal.user_id)
    if user.email_verified_at is not None:
        raise NotAllowedNow(f"{user.email} is already verified.")
    if not _send(ctx, user, VERIFY):
        raise NotAllowedNow("Three such mails were sent in the last hour. Look for them in the spam folder, or wait.")


def welcome(ctx: Context, user_id: str) -> None:
    """Send the first mail to a new account, if this server sends mail."""
    if not ctx.mail.is_set_up:
        return
    with ctx.db.read() as session:
        user = session.get(User, user_id)
    if user is not None and user.email_verified_at is None:
        _send(ctx, user, VERIFY)


def verify(ctx: Context, principal: Principal, code: str) -> None:
    """Record that the account's address is verified, by a code from a mail."""

    def work(session: Session) -> None:
        row = _usable(session, code, VERIFY)
        if row.user_id != principal.user_id:
            raise NotFound(f"This link is for the account {row.email}. Sign in with it first.", hint="shoal login")
        user = session.get_one(User, row.user_id)
        user.email_verified_at = utcnow()
        session.execute(delete(MailCode).where(MailCode.user_id == user.id, MailCode.purpose == VERIFY))
        record_action(session, AuditAction.ACCOUNT_VERIFY_EMAIL, user.email, user.id)

    ctx.guards.tries.begin(email=principal.email, address="verification")
    ctx.db.write(work)
    ctx.guards.tries.forgive(email=principal.email, address="verification")


def _send(ctx: Context, user: User | None, purpose: str) -> bool:
    """Store a code and send it; return False if the person has had enough of them.

    Without a user it does the same work and sends nothing, so that the time taken does not reveal who has an account.
    """
    code, now = new_token(CODE_PREFIX), utcnow()

    def work(session: Session) -> bool:
        session.execute(delete(MailCode).where(MailCode.expires_at <= now))
        if user is None:
            return False
        recent = (
            select(func.count()).select_from(MailCode).where(MailCode.user_id == user.id, MailCode.purpose == purpose)
        )
        if (session.scalar(recent.where(MailCode.created_at > now - timedelta(hours=1))) or 0) >= _MOST_AN_HOUR:
            return False
        session.add(
            MailCode(
                id=new_id("mail"),
                user_id=user.id,
                purpose=purpose,
                email=user.email,
                code_hash=hash_token(code),
                created_at=now,
                expires_at=now + _LIFE[purpose],
            )
        )
        return True

    if not ctx.db.write(work) or user is None:
        return False
    subject, text = ("Set a new password for Shoal", _RESET_MAIL) if purpose == RESET else ("Confirm your address for Shoal", _VERIFY_MAIL)  # fmt: skip
    email = user.email
    text = text.format(url=mailed_url(ctx), code=code)
    ctx.mail.send(Letter(email, subject, text, lambda why: logger.error("mail to %s was not accepted: %s", email, why)))
    return True


def _usable(session: Session, code: str, purpose: str) -> MailCode:
    found = select(MailCode).join(User, User.id == MailCode.user_id).where(User.disabled_at.is_(None))
    row = session.scalar(found.where(MailCode.code_hash == hash_token(code.strip()), MailCode.purpose == purpose))
    if row is None or row.expires_at <= utcnow():
        hint = "shoal password --lost" if purpose == RESET else None
        where = "" if purpose == RESET else " The page Settings sends another one."
        raise NotFound(f"This code is unknown, was used, or has expired.{where}", hint=hint)
    return row


def _demand_mail(ctx: Context) -> None:
    if not ctx.mail.is_set_up:
        raise NotAllowedNow(
            "This server sends no mail, so ask one of its admins for a new password.",
            hint="Admins: shoal user reset E-MAIL",
        )
