"""Verification of an ID token (a signed JWT) by the keys of its issuer. Reference: OpenID Connect Core 1.0, section 3.1.3.7."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from shoal.core.errors import NotSignedIn

LEEWAY_S = 120.0
"""Difference allowed between the clocks of the issuer and the server."""
_HASHES = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
_CURVES: dict[str, tuple[str, ec.EllipticCurve]] = {
    "ES256": ("P-256", ec.SECP256R1()),
    "ES384": ("P-384", ec.SECP384R1()),
    "ES512": ("P-521", ec.SECP521R1()),
}
_SMALLEST_RSA = 2048

Key = dict[str, Any]
"""A key of the issuer, as in its JWKS document."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Values that the token must have."""

    issuer: str
    client_id: str
    nonce: str
    now: float


def verify(token: str, find_keys: Callable[[str], Sequence[Key]], expected: Expected) -> dict[str, Any]:
    """Return the claims of a valid token; raise NotSignedIn otherwise.

    find_keys  returns the issuer's keys for a key id; all of them for an empty one

    The key decides which algorithms are possible, and only public-key algorithms exist here, so a token that names 'none' or
    an HMAC algorithm has no key.
    """
    try:
        head, body, signature = token.split(".")
        header, claims = json.loads(_decode(head)), json.loads(_decode(body))
        signed, given = f"{head}.{body}".encode(), _decode(signature)
    except (ValueError, binascii.Error):
        raise _invalid("it is not a JWT") from None
    if not isinstance(header, dict) or not isinstance(claims, dict) or "crit" in header:
        raise _invalid("its header is not understood")
    algorithm, key_id = str(header.get("alg", "")), str(header.get("kid", ""))
    keys = [key for key in find_keys(key_id) if key.get("use", "sig") == "sig"]
    if not any(_is_signed_by(key, algorithm, signed, given) for key in keys):
        raise _invalid("its signature is not the issuer's")
    _check_claims(claims, expected)
    return claims


def _check_claims(claims: dict[str, Any], expected: Expected) -> None:
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if claims.get("iss") != expected.issuer:
        raise _invalid("another issuer made it")
    if expected.client_id not in audiences or (len(audiences) > 1 and claims.get("azp") != expected.client_id):
        raise _invalid("it was made for another program")
    if claims.get("azp", expected.client_id) != expected.client_id:
        raise _invalid("it was made for another program")
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), expected.nonce.encode()):
        raise _invalid("it belongs to another sign-in")
    if not _number(claims.get("exp")) > expected.now - LEEWAY_S:
        raise _invalid("it has expired")
    if _number(claims.get("iat")) > expected.now + LEEWAY_S or _number(claims.get("nbf", 0)) > expected.now + LEEWAY_S:
        raise _invalid("it is not valid yet: check the clocks of the issuer and of this server")
    if not isinstance(claims.get("sub"), str) or not 0 < len(claims["sub"]) <= 255:
        raise _invalid("it names nobody")


def _is_signed_by(key: Key, algorithm: str, signed: bytes, signature: bytes) -> bool:
    if key.get("alg", algorithm) != algorithm:
        return False
    try:
        match key.get("kty"), algorithm[:2]:
            case "RSA", "RS" | "PS":
                _check_rsa(key, algorithm, signed, signature)
            case "EC", "ES":
                _check_ec(key, algorithm, signed, signature)
            case "OKP", "Ed":
                ed25519.Ed25519PublicKey.from_public_bytes(_decode(key["x"])).verify(signature, signed)
            case _:
                return False
    except (InvalidSignature, KeyError, ValueError, TypeError, binascii.Error):
        return False
    return True


def _check_rsa(key: Key, algorithm: str, signed: bytes, signature: bytes) -> None:
    digest = _HASHES[algorithm[2:]]
    public = rsa.RSAPublicNumbers(_integer(key["e"]), _integer(key["n"])).public_key()
    if public.key_size < _SMALLEST_RSA:
        raise ValueError("the key is too short")
    if algorithm.startswith("PS"):
        public.verify(signature, signed, padding.PSS(padding.MGF1(digest), digest.digest_size), digest)
    else:
        public.verify(signature, signed, padding.PKCS1v15(), digest)


def _check_ec(key: Key, algorithm: str, signed: bytes, signature: bytes) -> None:
    name, curve = _CURVES[algorithm]
    half = len(signature) // 2
    if key["crv"] != name or half != (curve.key_size + 7) // 8:
        raise ValueError("the key is of another curve")
    public = ec.EllipticCurvePublicNumbers(_integer(key["x"]), _integer(key["y"]), curve).public_key()
    numbers = (int.from_bytes(part) for part in (signature[:half], signature[half:]))
    public.verify(encode_dss_signature(*numbers), signed, ec.ECDSA(_HASHES[algorithm[2:]]))


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _integer(text: str) -> int:
    return int.from_bytes(_decode(text))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid("a time in it is missing")
    return float(value)


def _invalid(why: str) -> NotSignedIn:
    return NotSignedIn(f"The sign-in service returned an ID token that is not valid: {why}.")
