"""Certificates of the server itself: given by files, or made here and signed by a private CA of the data directory.

The private CA is made once. Everyone who knows its fingerprint can check what it signs, so agents and commands for joining
machines carry it. The server's own certificate is made again when its addresses change and before it expires.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from datetime import timedelta
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.core.errors import InvalidSpec
from shoal.core.private import write_private
from shoal.core.schema import utcnow
from shoal.core.settings import Layout, ServerSettings
from shoal.core.tls import fingerprint

OWN = "auto"
_CA_LIFE, _LIFE, _RENEW_BEFORE = timedelta(days=3650), timedelta(days=825), timedelta(days=90)
_BACKDATED = timedelta(hours=1)
"""Certificates are valid from a moment ago, for machines whose clock is a little behind."""


class PrivateCA:
    """The CA of a data directory: `tls_ca.pem`, `tls_ca.key` and the server's own certificate in the folder `server`."""

    def __init__(self, layout: Layout):
        folder = layout.server_dir
        self._ca_file, self._ca_key = folder / "tls_ca.pem", folder / "tls_ca.key"
        self.cert, self.key = folder / "tls_server.pem", folder / "tls_server.key"

    @property
    def pem(self) -> str:
        """Certificate of the CA. It is public."""
        self._ensure()
        return self._ca_file.read_text()

    def context(self, settings: ServerSettings) -> ssl.SSLContext:
        """Return the context of a listener with a certificate for all names and addresses of this machine."""
        self._ensure()
        names = _names(settings)
        if not self._is_current(names):
            self._sign(names)
        return _context(self.cert, self.key)

    def _ensure(self) -> None:
        if self._ca_file.exists() and self._ca_key.exists():
            return
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Shoal CA of {socket.gethostname()}"[:64])])
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        made = (
            _builder(name, key, _CA_LIFE)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_private(self._ca_key, _key_pem(key), durable=True)
        write_private(self._ca_file, _pem(made), durable=True)

    def _is_current(self, names: list[str]) -> bool:
        try:
            cert = x509.load_pem_x509_certificate(self.cert.read_bytes())
            ca = x509.load_pem_x509_certificate(self._ca_file.read_bytes())
            cert.verify_directly_issued_by(ca)
            held = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, TypeError, x509.ExtensionNotFound):
            return False
        except Exception:  # InvalidSignature: the certificate is of an earlier CA
            return False
        known = {str(name.value) for name in held}
        return self.key.exists() and set(names) <= known and cert.not_valid_after_utc - utcnow() > _RENEW_BEFORE

    def _sign(self, names: list[str]) -> None:
        ca = x509.load_pem_x509_certificate(self._ca_file.read_bytes())
        ca_key = serialization.load_pem_private_key(self._ca_key.read_bytes(), None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
            raise InvalidSpec(f"{self._ca_key} is not a key that Shoal has made.")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, socket.gethostname()[:64])])
        made = (
            _builder(subject, key, _LIFE)
            .issuer_name(ca.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        write_private(self.key, _key_pem(key))
        write_private(self.cert, _pem(made))


class Certificate:
    """TLS of the main listener: the context, and the CA that clients must be told about, if it is our own."""

    def __init__(self, layout: Layout, settings: ServerSettings):
        self._given = settings.tls_cert != OWN
        if self._given:
            self._cert, self._key = (
                Path(settings.tls_cert).expanduser(),
                Path(settings.tls_key or settings.tls_cert).expanduser(),
            )
            self.ca: str | None = None
            self.context = _context(self._cert, self._key)
        else:
            own = PrivateCA(layout)
            self.context, self.ca = own.context(settings), own.pem
            self._cert, self._key = own.cert, own.key
        self._seen = self._written()

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of our own CA; None with a certificate that others have signed."""
        return fingerprint(self.ca) if self.ca else None

    def refresh(self) -> bool:
        """Load the files again if they were replaced, as certificate renewals do; return whether they were."""
        seen = self._written()
        if not self._given or seen is None or seen == self._seen:
            return False
        self._seen = seen
        self.context.load_cert_chain(self._cert, self._key)
        return True

    def _written(self) -> tuple[int, int] | None:
        try:
            return self._cert.stat().st_mtime_ns, self._key.stat().st_mtime_ns
        except OSError:
            return None


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except FileNotFoundError:
        missing = next((path for path in (cert, key) if not path.exists()), cert)
        raise InvalidSpec(
            f"The TLS file {missing} does not exist.", hint="--tls-cert FILE --tls-key FILE, or --tls-cert auto"
        ) from None
    except (OSError, ssl.SSLError) as error:
        raise InvalidSpec(
            f"The certificate {cert} and the key {key} cannot be used: {getattr(error, 'reason', None) or error}.",
            hint="--tls-cert FILE --tls-key FILE (both PEM, the key without a passphrase)",
        ) from None
    return context


def _names(settings: ServerSettings) -> list[str]:
    """Return all names and addresses at which this machine may be reached."""
    found = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    found += [name.strip() for name in settings.hosts.split(",") if name.strip()]
    if settings.host not in ("0.0.0.0", "::"):  # noqa: S104
        found.append(settings.host)
    for addresses in psutil.net_if_addrs().values():
        found += [
            a.address for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6) and "%" not in a.address
        ]
    return list(dict.fromkeys(found))


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey, life: timedelta) -> x509.CertificateBuilder:
    now = utcnow()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + life)
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _pem(cert: x509.Certificate) -> str:
    return cert.public_bytes(serialization.Encoding.PEM).decode()
