"""Links by which people join a workspace: `https://SERVER/invite/CODE`."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

from shoal.core.errors import UsageError

_PATH = "/invite/"


def invite_path(code: str) -> str:
    return f"{_PATH}{quote(code, safe='')}"


def invite_link(base: str, code: str) -> str:
    return base.rstrip("/") + invite_path(code)


def parse_invite(text: str) -> tuple[str | None, str]:
    """(the server's URL, the code) of a link; (None, the code) of a bare code."""
    text = text.strip()
    if "/" not in text:
        if not text:
            raise UsageError("The invitation is empty.", hint="Give the link you got, or the code at its end.")
        return None, text
    parts = urlsplit(text)
    before, found, code = parts.path.rpartition(_PATH)
    if parts.scheme not in ("http", "https") or not parts.netloc or not found or not code.strip("/"):
        raise UsageError(f"{text!r} is not an invitation.", hint="It looks like https://shoal.example.org/invite/CODE")
    return f"{parts.scheme}://{parts.netloc}{before}", unquote(code.strip("/"))
