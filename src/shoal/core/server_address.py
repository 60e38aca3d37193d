"""Address at which others reach a server."""

from __future__ import annotations

from shoal.core.schema import View


class ServerAddress(View):
    """URL of this server for people on other machines."""

    url: str
    """The server's URL, without a trailing slash."""
    ca_fingerprint: str | None = None
    """Fingerprint of the private CA that signed its certificate; None if another CA did, or without TLS."""
