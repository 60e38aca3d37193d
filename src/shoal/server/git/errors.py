"""Translates git's error output to one plain sentence."""

from __future__ import annotations

import re

from shoal.core.errors import GitFailed
from shoal.server.git.urls import GitUrl

_AUTH = re.compile(
    r"could not read (Username|Password)|Authentication failed|error: 40[13]|Permission denied|HTTP Basic", re.I
)
_ABSENT = re.compile(r"repository .*not found|error: 404|does not appear to be a git repository|does not exist", re.I)
_NOT_GIT = re.compile(r"not valid: is this a git repository|invalid (server response|gitfile)|protocol error", re.I)
_NO_HOST = re.compile(r"could not resolve host|name or service not known|unable to look up", re.I)
_SILENT = re.compile(
    r"failed to connect|couldn't connect|could not connect|connection (refused|timed out|reset)|unable to connect"
    r"|no route to host|network is unreachable|operation too slow|empty reply|timed out",
    re.I,
)
_REDIRECT = re.compile(r"error: 30[1278]|unable to update url base from redirection", re.I)
_HOST_KEY = re.compile(r"host key verification failed", re.I)
_TLS = re.compile(r"certificate|SSL|TLS", re.I)
_DUMB = re.compile(r"dumb http transport", re.I)


def explain(text: str, url: GitUrl, *, signed_in: bool) -> GitFailed:
    """Return the error for a failed git command. `text`: the end of git's output, with secrets removed."""
    connect = f"shoal code-registry connect --host {url.netloc}" if url.scheme in ("https", "http") else None
    if _HOST_KEY.search(text):
        return GitFailed(f"The host key of '{url.host}' is not known to this machine.", hint=f"ssh -T git@{url.host}")
    if _NO_HOST.search(text):
        return GitFailed(f"The host '{url.host}' cannot be found.")
    if _AUTH.search(text):
        if signed_in:
            return GitFailed(
                f"'{url.host}' refused the token stored for it, or the token may not read {url.text}.", hint=connect
            )
        return GitFailed(f"{url.text} is private, or does not exist: '{url.host}' asks to sign in.", hint=connect)
    if _REDIRECT.search(text):
        return GitFailed(f"{url.text} has moved: give the URL it leads to (often it just ends in .git).")
    if _ABSENT.search(text):
        private = " or it is private" if connect and not signed_in else ""
        return GitFailed(f"There is no repository at {url.text},{private}.".replace(",.", "."), hint=connect)
    if _NOT_GIT.search(text) or _DUMB.search(text):
        return GitFailed(f"{url.text} is not a git repository.")
    if _SILENT.search(text):
        return GitFailed(f"The host '{url.host}' does not answer.")
    if _TLS.search(text):
        return GitFailed(f"The certificate of '{url.host}' cannot be verified.")
    return GitFailed(f"{url.text} could not be fetched: {_last_error(text)}")


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines or ["git gave no reason"]
    reason = re.sub(r"^(fatal|error): ", "", errors[-1])
    return "".join(c if c.isprintable() else " " for c in reason)[:200].rstrip(". ") + "."
