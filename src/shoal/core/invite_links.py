"""Invitation links with which people join a workspace: `https://SERVER/invite/CODE`, with the fingerprint of its private CA."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from shoal.core.errors import UsageError
from shoal.core.tls import PREFIX as FINGERPRINT

_PATH = "/invite/"


@dataclass(frozen=True, slots=True)
class Invite:
    """Content of an invitation link."""

    url: str | None
    """The server's URL; None for a bare code."""
    code: str
    fingerprint: str | None = None
    """Fingerprint of the server's private CA; None if its certificate was signed by another one."""


def invite_path(code: str) -> str:
    return f"{_PATH}{quote(code, safe='')}"


def invite_link(base: str, code: str, fingerprint: str | None = None) -> str:
    """Return the link. A fingerprint is its fragment, which browsers do not send and programs compare with the server's CA."""
    return with_fingerprint(base.rstrip("/") + invite_path(code), fingerprint)


def with_fingerprint(link: str, fingerprint: str | None) -> str:
    return f"{link}#{fingerprint}" if fingerprint else link


def fingerprint_in(link: str) -> str | None:
    """Return the fingerprint of the private CA that a link names, or None."""
    fragment = link.strip().strip("<>\"'").partition("#")[2]
    return fragment if fragment.startswith(FINGERPRINT) else None


def parse_invite(text: str) -> Invite:
    """Return the content of an invitation link, or of a bare code."""
    text = text.strip().strip("<>\"'")
    if "/" not in text:
        code, _, _ = text.partition("#")
        if not code:
            raise UsageError("The invitation is empty.", hint="Give the link you received, or the code at its end.")
        return Invite(None, code, fingerprint_in(text))
    parts = urlsplit(text)
    before, found, code = parts.path.rpartition(_PATH)
    if parts.scheme not in ("http", "https") or not parts.netloc or not found or not code.strip("/"):
        raise UsageError(
            f"{text!r} is not an invitation.", hint="An invitation looks like https://shoal.example.org/invite/CODE"
        )
    return Invite(f"{parts.scheme}://{parts.netloc}{before}", unquote(code.strip("/")), fingerprint_in(text))
