"""Sign-in services of a server: the issuers that people may sign in with, in `server/sign_in.toml` (mode 0600).

The file is read again when it has changed, so `shoal server oidc add` needs no restart. It holds the client secrets, which
therefore never pass through the API.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from shoal.core.errors import InvalidSpec, NotFound
from shoal.core.names import check_name
from shoal.core.private import write_private

GOOGLE = "https://accounts.google.com"
MICROSOFT = "https://login.microsoftonline.com/{tenant}/v2.0"
TITLES = {"google": "Google", "microsoft": "Microsoft", "github": "GitHub", "gitlab": "GitLab"}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LIST = "shoal server oidc list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An issuer that people may sign in with, and what this server is called there."""

    name: str
    """Name in URLs: /sign-in/with/NAME."""
    title: str
    """Name on buttons."""
    issuer: str
    client_id: str
    client_secret: str = ""
    """Empty for a public client, which is protected by PKCE only."""
    domains: tuple[str, ...] = ()
    """Domains of e-mail addresses for which the service may create accounts. Empty: it creates none without an invitation."""
    trust_email: bool = False
    """Accept addresses that the issuer does not declare as verified. Only for issuers that assign the addresses themselves."""

    def creates_for(self, email: str) -> bool:
        """Return whether a person with this address may get an account without an invitation."""
        return email.partition("@")[2] in self.domains


def make(
    name: str,
    *,
    issuer: str = "",
    tenant: str = "",
    client_id: str,
    client_secret: str = "",
    title: str = "",
    domains: list[str] | None = None,
    trust_email: bool = False,
) -> Service:
    """Return a checked service. The issuers of 'google' and 'microsoft' are known."""
    name = check_name(name.strip().lower(), "sign-in service")
    if name == "microsoft" and not issuer:
        if not tenant:
            raise InvalidSpec(
                "Microsoft needs the id of your tenant: accounts of other tenants could claim your addresses.",
                hint="shoal server oidc add microsoft --tenant TENANT-ID --client-id CLIENT-ID",
            )
        issuer = MICROSOFT.format(tenant=tenant)
    issuer = issuer or (GOOGLE if name == "google" else "")
    check_issuer(issuer)
    if not client_id.strip():
        raise InvalidSpec("The client id is missing.", hint="The issuer shows it where you registered this server.")
    return Service(
        name=name,
        title=title.strip() or TITLES.get(name, name),
        issuer=issuer,
        client_id=client_id.strip(),
        client_secret=client_secret.strip(),
        domains=tuple(sorted({_domain(one) for one in domains or []})),
        trust_email=trust_email,
    )


def check_issuer(issuer: str) -> None:
    """Raise unless the text is the URL of an issuer: https, or http on this machine."""
    try:
        url = urlsplit(issuer)
        is_fine = bool(url.hostname) and not (url.query or url.fragment or url.username) and url.port != 0
    except ValueError:
        is_fine = False
    if not is_fine or not is_secure(issuer):
        raise InvalidSpec(
            f"{issuer!r} is not the URL of an issuer: it must begin with https://.",
            hint="shoal server oidc add company --issuer https://id.example.org --client-id CLIENT-ID",
        )


def is_secure(url: str) -> bool:
    """Return whether nobody on the network can change what is fetched from a URL."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


class Services:
    """The services of a configuration file. Reading needs no lock: the file is replaced as a whole."""

    def __init__(self, path: Path):
        self._path = path
        self._read: tuple[tuple[int, int, int], dict[str, Service]] | None = None

    def list(self) -> list[Service]:
        """Return all services, sorted by name."""
        found = self._load()
        return [found[name] for name in sorted(found)]

    def get(self, name: str) -> Service:
        found = self._load().get(name)
        if found is None:
            raise NotFound(f"This server has no sign-in service '{name[:100]}'.", hint=_LIST)
        return found

    def save(self, service: Service) -> None:
        """Add a service, or replace the one of this name."""
        self._write(self._load() | {service.name: service})

    def remove(self, name: str) -> Service:
        gone = self.get(name)
        self._write({other: service for other, service in self._load().items() if other != name})
        return gone

    def _load(self) -> dict[str, Service]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return {}
        key = (found.st_ino, found.st_mtime_ns, found.st_size)
        if self._read is None or self._read[0] != key:
            self._read = key, _parse(self._path)
        return self._read[1]

    def _write(self, services: dict[str, Service]) -> None:
        import tomli_w

        rows = {name: _stored(services[name]) for name in sorted(services)}
        write_private(self._path, tomli_w.dumps(rows), durable=True)


def _stored(service: Service) -> dict[str, object]:
    values = {key: value for key, value in asdict(service).items() if key != "name" and value not in ("", (), False)}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _parse(path: Path) -> dict[str, Service]:
    try:
        return {name: make(name, **values) for name, values in tomllib.loads(path.read_text(encoding="utf-8")).items()}
    except (tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        raise InvalidSpec(f"{path} cannot be read: {error}", hint=_LIST) from None


def _domain(text: str) -> str:
    domain = text.strip().lower().removeprefix("@")
    if not domain or "." not in domain or "@" in domain or any(c.isspace() for c in domain):
        raise InvalidSpec(f"{text!r} is not a domain.", hint="--domain example.org")
    return domain
