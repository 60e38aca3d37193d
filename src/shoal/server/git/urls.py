"""Checks of git URLs: which ones the server may fetch from. Names and addresses are checked here, before git sees them."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from shoal.core.addresses import is_public
from shoal.core.errors import GitFailed

_DEFAULT_PORTS = {"https": 443, "http": 80}
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_SCP = re.compile(r"(?:[A-Za-z0-9._-]+@)?(?P<host>[A-Za-z0-9._-]+):(?P<path>[^:].*)")
_BAD_IN_REVISION = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-+/.]|[/.]$")
_EXAMPLE = "Give it like https://github.com/someone/something."


@dataclass(frozen=True, slots=True)
class GitUrl:
    """URL of a git repository that is safe to pass to git. Contains no credentials."""

    text: str
    scheme: str
    """https, http, ssh, git or file."""
    host: str = ""
    port: int | None = None

    @property
    def netloc(self) -> str:
        """Host and port as written in the URL, in git's password prompts and in `code-registry connect --host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_git_url(text: str, *, private: bool) -> GitUrl:
    """Parse and check a git URL. Shared servers (`private=False`) allow http(s) only.

    ssh would use the server's own keys, and file URLs would read its disk.
    """
    if not text or text.startswith("-") or not text.isprintable() or " " in text or re.search(r"%0[0ad]", text, re.I):
        raise GitFailed(f"That is not the URL of a git repository. {_EXAMPLE}")
    if re.match(r"[A-Za-z0-9+.-]*::", text):
        raise GitFailed(f"'{text}' names a transport helper, which is not allowed. {_EXAMPLE}")
    url = _parse(text)
    if not private and url.scheme not in _DEFAULT_PORTS:
        raise GitFailed(
            f"This server fetches only over https, not '{url.scheme}'.",
            hint=f"shoal code-registry connect --host {url.host}" if url.host else None,
        )
    return url


def check_revision(revision: str) -> str:
    """Return the name of a branch, tag or commit; raise if git does not allow such a name."""
    if _BAD_IN_REVISION.search(revision) or revision.endswith(".lock"):
        raise GitFailed(f"{revision!r} is not the name of a branch, tag or commit.")
    return revision


def permitted_addresses(url: GitUrl, private_hosts: str = "") -> list[str]:
    """Return the host's addresses, so that git connects to exactly these; raise if one is in a private network.

    `private_hosts` is the setting `git_hosts`: hosts that an admin permits wherever they are.
    """
    try:
        found = socket.getaddrinfo(url.host, url.port or _DEFAULT_PORTS[url.scheme], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise GitFailed(f"The host '{url.host}' cannot be found.") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if url.netloc not in _listed(private_hosts) and not all(is_public(address) for address in addresses):
        raise GitFailed(
            f"The host '{url.host}' is inside a private network; this server does not fetch from there.",
            hint=f'an admin can permit it in settings.toml: git_hosts = "{url.netloc}"',
        )
    return addresses


def _listed(private_hosts: str) -> set[str]:
    return {name.strip().lower() for name in private_hosts.split(",") if name.strip()}


def _parse(text: str) -> GitUrl:
    if "://" in text:
        return _parse_full(text)
    if text.startswith("/"):
        return GitUrl(text, "file")
    if text.startswith((".", "~")):
        raise GitFailed(f"'{text}' is a relative path; give the repository's full path or URL.")
    match = _SCP.fullmatch(text)
    if match and _HOST.fullmatch(match["host"]) and not match["path"].startswith("-"):
        return GitUrl(text, "ssh", match["host"].lower())
    raise GitFailed(f"'{text}' is not the URL of a git repository. {_EXAMPLE}")


def _parse_full(text: str) -> GitUrl:
    try:
        parts = urlsplit(text)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise GitFailed(f"That is not the URL of a git repository. {_EXAMPLE}") from None
    _check_no_credentials(parts, host)
    if parts.scheme == "file" and host in ("", "localhost") and parts.path.startswith("/"):
        return GitUrl(f"file://{parts.path}", "file")
    if parts.scheme not in ("https", "http", "ssh", "git"):
        raise GitFailed(f"Git repositories cannot be fetched over '{parts.scheme}'. {_EXAMPLE}")
    if not (_HOST.fullmatch(host) or _is_ipv6(host)) or not parts.path.strip("/") or parts.query or parts.fragment:
        raise GitFailed(f"'{text}' is not the URL of a git repository. {_EXAMPLE}")
    if parts.scheme in ("ssh", "git"):
        return GitUrl(text, parts.scheme, host, port)
    url = GitUrl("", parts.scheme, host, None if port == _DEFAULT_PORTS[parts.scheme] else port)
    return GitUrl(f"{url.scheme}://{url.netloc}{parts.path}", url.scheme, url.host, url.port)


def _check_no_credentials(parts: SplitResult, host: str) -> None:
    allowed_user = parts.scheme == "ssh" and re.fullmatch(r"[A-Za-z0-9._-]+", parts.username or "git")
    if parts.password is not None or (parts.username is not None and not allowed_user):
        raise GitFailed(
            "The URL contains a user name or password, which would be stored in records; connect the host instead.",
            hint=f"shoal code-registry connect --host {host}" if _HOST.fullmatch(host) else None,
        )


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return "%" not in host
