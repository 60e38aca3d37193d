"""TLS of connections to a server: which certificates vouch for it. Standard library only; `ssl` is imported when needed.

A server may have a certificate of its own private CA. A client then knows that CA: from `shoal login --ca` or
`--fingerprint`, from the variable SHOAL_CA, or from the launch file of an agent.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.errors import InvalidSpec

if TYPE_CHECKING:
    import ssl

PREFIX = "sha256:"
"""Beginning of a fingerprint."""
CA_VAR = "SHOAL_CA"
"""Environment variable: a PEM file, or its text."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)


def context_for(ca: str | None = None) -> ssl.SSLContext:
    """Return a context that checks the server's certificate.

    Args:
        ca: PEM text of the certificates that vouch for the server; None: those of SHOAL_CA, or else of this machine.
    """
    import ssl

    given = ca or given_ca()
    if given is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cadata=given)
    except ssl.SSLError as error:
        raise InvalidSpec(f"The certificates of the server's CA cannot be used: {error.reason or error}.") from None


def untrusted(error: BaseException | None) -> str | None:
    """Return why a certificate was refused, if that is what caused an error; else None."""
    while error is not None:
        if reason := getattr(error, "verify_message", None):
            return str(reason).rstrip(".")
        error = error.__cause__ or error.__context__
    return None


def given_ca() -> str | None:
    """Return the PEM text of SHOAL_CA, or None without it."""
    value = os.environ.get(CA_VAR, "").strip()
    return pem_of(value) if value else None


def pem_of(value: str) -> str:
    """Return PEM text, which is either given itself or by its file."""
    if not value.startswith("-----BEGIN"):
        try:
            value = Path(value).expanduser().read_text()
        except (OSError, ValueError) as error:
            raise InvalidSpec(
                f"The CA file {value!r} cannot be read: {error}.", hint=f"{CA_VAR}=/path/to/ca.pem"
            ) from None
    if not _PEM.search(value):
        raise InvalidSpec("The CA file has no certificate in PEM form (-----BEGIN CERTIFICATE-----).")
    return value


def fingerprint(pem: str) -> str:
    """Return the SHA-256 fingerprint of the first certificate, as `sha256:…`."""
    found = _PEM.search(pem)
    if found is None:
        raise InvalidSpec("This is not a certificate in PEM form.")
    return PREFIX + hashlib.sha256(base64.b64decode("".join(found.group(1).split()))).hexdigest()


def same_fingerprint(one: str, other: str) -> bool:
    """Compare fingerprints as people write them: with or without `sha256:`, colons and capitals."""
    return _plain(one) == _plain(other) != ""


def _plain(text: str) -> str:
    return text.strip().lower().removeprefix(PREFIX).replace(":", "").replace(" ", "")
