"""Trust in a server's private CA by its fingerprint, as `shoal login --fingerprint` and invitation links name it."""

from __future__ import annotations

from shoal.client.config import trust
from shoal.client.server_record import private_ca
from shoal.core.errors import AuthError, NotFound
from shoal.core.tls import fingerprint as fingerprint_of
from shoal.core.tls import same_fingerprint


def trust_by_fingerprint(url: str, fingerprint: str) -> None:
    """Fetch the server's private CA, compare it with the fingerprint, and accept its certificates from now on."""
    pem = private_ca(url)
    if pem is None:
        raise NotFound(
            f"The server at {url} does not answer, or has no private CA.",
            hint="Check the address; on the server's machine: shoal server status",
        )
    if not same_fingerprint(fingerprint_of(pem), fingerprint):
        raise AuthError(
            f"The CA of {url} has another fingerprint, {fingerprint_of(pem)}: this is not the server you mean.",
            hint="Compare it with the line CA of `shoal server status` on the server's machine.",
        )
    trust(url, pem)
