"""The token in a join link: an invitation's id, its expiry and its swarm's public key, signed with that swarm's key.

Everyone who has the token can verify it offline. Only the server knows whether it was revoked.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import time
from dataclasses import dataclass
from types import ModuleType
from urllib.parse import urlsplit

from shoal.core.errors import InvalidSpec, KeyExpired, MissingExtra
from shoal.core.invite_links import with_fingerprint

PREFIX = "shoalw_"
JOIN_PAGE = "/join/"
_FORM = struct.Struct(">30sQ32s64s")
_SIGNED = _FORM.size - 64
_CONTEXT = b"shoal invitation 1\0"
_WORD = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Invitation:
    """Content of a token."""

    id: str
    expires_at: int
    """Unix seconds."""
    owner_key: str
    """Public key of the swarm, hex. The server must present the same key."""


def new_key() -> tuple[str, str]:
    """Return the private and public half of a new signing key, hex."""
    private = _ed25519().Ed25519PrivateKey.generate()
    return private.private_bytes_raw().hex(), private.public_key().public_bytes_raw().hex()


def seal(invitation: Invitation, signing_key: str) -> str:
    """Return the signed token of an invitation."""
    private = _ed25519().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(signing_key))
    head = _FORM.pack(invitation.id.encode(), invitation.expires_at, bytes.fromhex(invitation.owner_key), bytes(64))[
        :_SIGNED
    ]
    return _encoded(head + private.sign(_CONTEXT + head))


def unseal(token: str) -> Invitation:
    """Return the content of a token after checking its form and signature. `check_time` checks whether it has expired."""
    word = token.removeprefix(PREFIX)
    if word == token or not _WORD.fullmatch(word):
        raise _not_one()
    ed25519 = _ed25519()
    try:
        raw = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
        if _encoded(raw) != token:  # extra characters beyond the last whole byte
            raise binascii.Error
        ident, expires_at, owner, signature = _FORM.unpack(raw)
        ed25519.Ed25519PublicKey.from_public_bytes(owner).verify(signature, _CONTEXT + raw[:_SIGNED])
        return Invitation(ident.decode("ascii"), expires_at, owner.hex())
    except (binascii.Error, struct.error, UnicodeDecodeError, _bad_signature()):
        raise InvalidSpec(
            "This link is damaged: part of it is missing or was changed.",
            hint="Copy the complete link and try again: shoal swarm join LINK",
        ) from None


def check_time(invitation: Invitation, now: float | None = None) -> None:
    """Raise KeyExpired if the invitation has expired."""
    late_s = (time.time() if now is None else now) - invitation.expires_at
    if late_s > 0:
        ended = time.strftime("%Y-%m-%d %H:%M", time.gmtime(invitation.expires_at))
        raise KeyExpired(
            f"This link has expired: it was valid until {ended} UTC.",
            hint="Ask the sender for a new one: shoal swarm invite NAME",
        )


def link_of(server: str, token: str, fingerprint: str | None = None) -> str:
    """Return the link; `fingerprint` is that of the server's private CA."""
    return with_fingerprint(f"{server.rstrip('/')}{JOIN_PAGE}{token}", fingerprint)


def split_link(link: str) -> tuple[str | None, str]:
    """Return the server (None if only a token was given) and the token from the text a person pasted."""
    text = link.strip().strip("<>\"'")
    if "://" not in text:
        return None, text.partition("#")[0].removeprefix(JOIN_PAGE)
    parts = urlsplit(text)
    base, mark, token = parts.path.rpartition(JOIN_PAGE)
    if parts.scheme not in ("http", "https") or not parts.netloc or not mark:
        raise _not_one()
    return f"{parts.scheme}://{parts.netloc}{base}", token.strip("/")


def _encoded(raw: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _not_one() -> InvalidSpec:
    return InvalidSpec(
        "This is not a link to a swarm; such a link looks like https://SERVER/join/shoalw_….",
        hint="Ask the owner of the swarm for one: shoal swarm invite NAME",
    )


def _ed25519() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingExtra(
            "Swarms need a package that is not installed.", hint="pip install 'shoal-train[swarm]'"
        ) from None
    return ed25519


def _bad_signature() -> type[Exception]:
    from cryptography.exceptions import InvalidSignature

    return InvalidSignature
