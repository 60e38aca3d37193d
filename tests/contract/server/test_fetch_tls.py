"""T8: who answers over https is who was asked for, though the address was looked up before."""

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fetches import fetch, refusal
from local_web import web_server

from shoal.core.errors import Refused
from shoal.server.ssrf_guard import Guard


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def secure(tmp_path):
    """An https server for data.example, and what trusts it."""
    cert, key = certificate(tmp_path, "data.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    names = []
    context.sni_callback = lambda _, name, __: names.append(name)
    with web_server(tls=context) as made:
        made.names, made.trust = names, ssl.create_default_context(cafile=str(cert))
        yield made


def test_tls_is_asked_for_by_name_though_the_address_is_pinned(secure, tmp_path):
    secure.pages["/f"] = lambda request: request.send(200, b"safe")
    guard = Guard(private=True, resolve=lambda host, port: ["127.0.0.1"])
    fetch(f"https://data.example:{secure.port}/f", tmp_path / "f", guard, tls=secure.trust)
    assert (tmp_path / "f").read_bytes() == b"safe"
    assert secure.names == ["data.example"]
    assert secure.seen[0].headers["Host"] == f"data.example:{secure.port}"


@pytest.mark.parametrize("case", ["another name", "unknown issuer"])
def test_a_certificate_that_does_not_fit_is_refused_at_once(secure, tmp_path, case):
    guard = Guard(private=True, resolve=lambda host, port: ["127.0.0.1"])
    host, tls = ("other.example", secure.trust) if case == "another name" else ("data.example", None)
    text = refusal(f"https://{host}:{secure.port}/f", tmp_path / "f", guard, Refused, tls=tls, first_wait_s=60)
    assert "certificate" in text
    assert secure.seen == []


def test_no_redirect_leaves_https(secure, web, tmp_path):
    secure.pages["/f"] = lambda request: request.send(302, Location=f"{web.url}/f")
    guard = Guard(private=True, resolve=lambda host, port: ["127.0.0.1"])
    assert "https to http" in refusal(f"https://data.example:{secure.port}/f", tmp_path / "f", guard, tls=secure.trust)
    assert web.seen == []
