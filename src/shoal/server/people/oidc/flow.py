"""Sign-in at an issuer by the authorization code flow, with PKCE, state and nonce.

What belongs to a sign-in under way is in a sealed cookie of the browser that began it, so nothing of strangers is stored, and
the issuer's answer is accepted only in that browser.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from shoal.core.audit import AuditAction
from shoal.core.errors import AuthError, Corrupt, NotSignedIn
from shoal.core.people import SessionView
from shoal.server.audit.record import record_failure
from shoal.server.context import Context
from shoal.server.people.oidc import identities
from shoal.server.people.oidc.id_token import Expected, verify
from shoal.server.people.oidc.services import Service
from shoal.server.policy import Principal

LIFE_S = 600
"""Seconds a person has for signing in at the issuer."""
_BOUND_TO = "sign-in under way"
_SCOPE = "openid email profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A sign-in under way."""

    service: str
    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next: str
    invitation: str
    connects: str
    """Id of the signed-in user who connects an account; empty for a sign-in."""
    expires_at: float


def begin(
    ctx: Context, name: str, *, redirect_uri: str, next_path: str = "/", invitation: str = "", connects: str = ""
) -> tuple[str, str]:
    """Return the issuer's URL for the browser, and the value of the cookie that it must bring back."""
    service = ctx.sign_in_services.get(name)
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    begun = Begun(
        service=service.name,
        state=state,
        nonce=nonce,
        verifier=verifier,
        redirect_uri=redirect_uri,
        next=next_path,
        invitation=invitation,
        connects=connects,
        expires_at=time.time() + LIFE_S,
    )
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    query = {
        "response_type": "code",
        "client_id": service.client_id,
        "redirect_uri": redirect_uri,
        "scope": _SCOPE,
        "state": state,
        "nonce": nonce,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    url = ctx.issuers.endpoints(service).authorize
    sealed = ctx.vault.seal(json.dumps(asdict(begun)), bound_to=_BOUND_TO)
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}", base64.urlsafe_b64encode(sealed).decode()


def finish(
    ctx: Context, name: str, cookie: str, answer: Mapping[str, str], *, caller: Principal | None, program: str
) -> tuple[SessionView | None, Begun]:
    """Check the issuer's answer; return a new session, or None if an account was connected to the caller's."""
    service = ctx.sign_in_services.get(name)
    try:
        begun = _open(ctx, service, cookie, answer)
        person = identities.describe(service, _claims(ctx, service, begun, answer))
        if not begun.connects:
            signed_in = identities.sign_in(ctx, service, person, invitation=begun.invitation, program=program)
            return signed_in, begun
        if caller is None or caller.user_id != begun.connects:
            raise NotSignedIn("You have signed out meanwhile, or signed in with another account. Begin again.")
    except AuthError as error:
        record_failure(ctx, AuditAction.SESSION_START, None, f"{service.title}: {error.message}")
        raise
    identities.connect(ctx, service, person, caller)
    return None, begun


def _open(ctx: Context, service: Service, cookie: str, answer: Mapping[str, str]) -> Begun:
    again = NotSignedIn("This sign-in was not begun in this browser, or more than ten minutes ago. Begin again.")
    try:
        sealed = base64.urlsafe_b64decode(cookie.encode("ascii"))
        begun = Begun(**json.loads(ctx.vault.open(sealed, bound_to=_BOUND_TO)))
    except (Corrupt, ValueError, TypeError, binascii.Error):
        raise again from None
    is_same = hmac.compare_digest(begun.state.encode(), answer.get("state", "").encode())
    if not is_same or begun.service != service.name or begun.expires_at < time.time():
        raise again
    return begun


def _claims(ctx: Context, service: Service, begun: Begun, answer: Mapping[str, str]) -> dict[str, object]:
    if answer.get("iss", service.issuer) != service.issuer:
        raise NotSignedIn("The answer came from another issuer than the one that was asked.")
    if "error" in answer:
        said = ": ".join(answer[name][:200] for name in ("error", "error_description") if answer.get(name))
        raise NotSignedIn(f"{service.title} did not sign you in ({said}).")
    code = answer.get("code", "")
    if not code:
        raise NotSignedIn(f"{service.title} returned no code.")
    token = ctx.issuers.exchange(service, code=code, verifier=begun.verifier, redirect_uri=begun.redirect_uri)
    expected = Expected(service.issuer, service.client_id, begun.nonce, time.time())
    return verify(token, lambda key_id: ctx.issuers.keys(service, key_id), expected)
