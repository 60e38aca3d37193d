"""Keys of the SSH gateway: its own key pairs, and certificates that open a lease for a few minutes."""

from __future__ import annotations

import hmac
import secrets
import threading
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    SSHCertificateBuilder,
    SSHCertificateType,
    load_ssh_private_key,
    load_ssh_public_key,
)

from shoal.core.errors import Corrupt, InvalidSpec
from shoal.core.private import write_private
from shoal.core.schema import utcnow, wall_utcnow

CERTIFICATE_LIFE = timedelta(minutes=5)
_SKEW = timedelta(minutes=1)
"""Allowed clock difference: certificates are valid from this long before they are issued."""
_EXTENSIONS = ("permit-port-forwarding", "permit-pty")


def new_key() -> tuple[str, str]:
    """Return a new private key in OpenSSH format, and its public line."""
    key = Ed25519PrivateKey.generate()
    return private_text(key), public_line(key)


def private_text(key: Ed25519PrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()


def public_line(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


class Keyring:
    """The gateway's key pairs, created on first use and never replaced: people's known_hosts files contain the host key."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._lock = threading.Lock()

    @cached_property
    def host(self) -> Ed25519PrivateKey:
        """Host key of the gateway."""
        return self._key("ssh_host.key")

    @cached_property
    def client(self) -> Ed25519PrivateKey:
        """Key with which the gateway logs in to the SSH servers of leases."""
        return self._key("ssh_client.key")

    @cached_property
    def authority(self) -> Ed25519PrivateKey:
        """Certificate authority key that signs the certificates of `certify`."""
        return self._key("ssh_ca.key")

    def derived(self, name: str) -> tuple[str, str]:
        """Return a key pair like `new_key`, always the same one for the same name, also after a restart."""
        secret = self.client.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        key = Ed25519PrivateKey.from_private_bytes(hmac.digest(secret, f"host key of {name}".encode(), "sha256"))
        return private_text(key), public_line(key)

    def certify(self, public_key: str, *, login: str, who: str, until: datetime | None) -> tuple[str, datetime]:
        """Return a certificate that opens one lease for `CERTIFICATE_LIFE` at most, and the time when it ends."""
        now = wall_utcnow()  # the machine that checks the certificate has only its system clock
        ends = now + min(CERTIFICATE_LIFE, until - utcnow() if until else CERTIFICATE_LIFE)
        try:
            builder = SSHCertificateBuilder().public_key(load_ssh_public_key(public_key.encode()))  # type: ignore[arg-type]
        except Exception:  # the library raises many types for malformed input
            raise InvalidSpec("No certificate can be made for this key.", hint="ssh-keygen -t ed25519") from None
        builder = builder.serial(secrets.randbits(63)).type(SSHCertificateType.USER).key_id(f"{who} {login}".encode())
        builder = builder.valid_principals([login.encode()])
        builder = builder.valid_after((now - _SKEW).timestamp()).valid_before(ends.timestamp())
        for name in _EXTENSIONS:
            builder = builder.add_extension(name.encode(), b"")
        return builder.sign(self.authority).public_bytes().decode(), ends

    def _key(self, name: str) -> Ed25519PrivateKey:
        path = self._folder / name
        with self._lock:  # two threads on first use must not create one each
            if not path.exists():
                write_private(path, new_key()[0], durable=True)
        key = load_ssh_private_key(path.read_bytes(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise Corrupt(f"{path} is not an SSH gateway key.")
        return key
