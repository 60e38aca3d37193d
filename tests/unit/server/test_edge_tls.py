"""Certificates of a server: its private CA, those that others have signed, and who is refused without any."""

from __future__ import annotations

import shutil
import socket
import ssl

import pytest

from shoal.client._http import Http
from shoal.client.config import trust
from shoal.core.errors import InvalidSpec, Refused, Unreachable
from shoal.core.settings import Layout, ServerSettings
from shoal.core.tls import context_for, fingerprint, pem_of, same_fingerprint
from shoal.server.edge import exposure
from shoal.server.edge.certificates import Certificate, PrivateCA
from shoal.server.edge.listener import ListenerThread, listen

AUTO = ServerSettings(tls_cert="auto", hosts="shoal.example.org")


@pytest.fixture
def layout(tmp_path):
    made = Layout(tmp_path / "home")
    made.close()
    return made


@pytest.fixture
def tls(layout):
    return Certificate(layout, AUTO)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Shake hands in memory; raise ssl.SSLError if the client does not trust the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (ours, theirs, ours, theirs, ours):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


def test_our_own_ca_vouches_for_all_names_of_the_machine(tls):
    for name in ("127.0.0.1", "localhost", socket.gethostname(), "shoal.example.org"):
        handshake(tls.context, context_for(tls.ca), name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls.context, context_for(tls.ca), "elsewhere.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls.context, ssl.create_default_context(), "localhost")


def test_the_ca_stays_and_its_key_is_for_the_owner_only(layout, tls):
    again = Certificate(layout, ServerSettings(tls_cert="auto", hosts="another.example.org"))
    assert again.ca == tls.ca
    assert again.fingerprint == tls.fingerprint
    handshake(again.context, context_for(tls.ca), "another.example.org")
    assert {path.name: path.stat().st_mode & 0o077 for path in layout.server_dir.glob("tls_*.key")} == {
        "tls_ca.key": 0, "tls_server.key": 0
    }  # fmt: skip


def test_a_certificate_is_made_again_only_if_it_must(layout, tls):
    before = PrivateCA(layout).cert.read_bytes()
    Certificate(layout, AUTO)
    assert PrivateCA(layout).cert.read_bytes() == before
    for name in ("tls_ca.pem", "tls_ca.key"):  # as after the loss of the CA
        (layout.server_dir / name).unlink()
    other = Certificate(layout, AUTO)
    assert other.ca != tls.ca
    handshake(other.context, context_for(other.ca), "localhost")


def test_a_given_certificate_is_loaded_again_when_it_was_renewed(layout, tmp_path):
    own, files = PrivateCA(layout), {name: tmp_path / f"{name}.pem" for name in ("cert", "key")}
    own.context(AUTO)
    for name, path in files.items():
        shutil.copy(getattr(own, name), path)
    given = Certificate(layout, ServerSettings(tls_cert=str(files["cert"]), tls_key=str(files["key"])))
    assert given.ca is None
    assert not given.refresh()
    handshake(given.context, context_for(own.pem), "localhost")
    newer = PrivateCA(Layout(tmp_path / "newer"))
    newer.context(AUTO)
    for name, path in files.items():
        shutil.copy(getattr(newer, name), path)
    assert given.refresh()
    handshake(given.context, context_for(newer.pem), "localhost")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tls_cert": "/nowhere/cert.pem"}, "/nowhere/cert.pem does not exist"),
        ({"tls_cert": __file__}, "cannot be used"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_refused_by_its_name(layout, settings, text):
    with pytest.raises(InvalidSpec, match=text):
        Certificate(layout, ServerSettings(**settings))


def test_a_client_that_knows_the_ca_connects_and_others_do_not(tls):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"true"})

    listener = listen("127.0.0.1", 0)
    server, url = (
        ListenerThread(app, listener, name="tls", tls=tls.context),
        f"https://127.0.0.1:{listener.getsockname()[1]}",
    )
    try:
        client = Http(url, sleep=lambda _: None)
        with pytest.raises(Unreachable, match=r"certificate of .* cannot be trusted") as caught:
            client.fetch(bool, "/anything")
        assert "--fingerprint" in str(caught.value.hint)
        client.close()
        trust(url, tls.ca)
        client = Http(url)
        assert client.fetch(bool, "/anything") is True
        client.close()
    finally:
        server.request_end()
        server.join()


def test_the_ca_may_be_given_by_file_or_as_text(tls, tmp_path, monkeypatch):
    (tmp_path / "ca.pem").write_text(tls.ca)
    for value in (str(tmp_path / "ca.pem"), tls.ca):
        monkeypatch.setenv("SHOAL_CA", value)
        handshake(tls.context, context_for(), "localhost")
    with pytest.raises(InvalidSpec, match="cannot be read"):
        pem_of("/nowhere.pem")
    with pytest.raises(InvalidSpec, match="no certificate"):
        pem_of(__file__)


def test_a_fingerprint_is_compared_however_it_is_written(tls):
    known = fingerprint(tls.ca)
    digits = known.removeprefix("sha256:")
    colons = ":".join(digits[i : i + 2] for i in range(0, 64, 2)).upper()
    assert same_fingerprint(known, digits)
    assert same_fingerprint(known, f"SHA256:{colons}")
    assert not same_fingerprint(known, digits[:-1] + ("0" if digits[-1] != "0" else "1"))
    assert not same_fingerprint("", "")


@pytest.mark.parametrize(
    ("more", "is_let"),
    [
        ({}, False),
        ({"tls_cert": "auto"}, True),
        ({"behind_proxy": "10.0.0.2"}, True),
        ({"allow_clear_text": True}, True),
        ({"shared": True}, False),
    ],
)
def test_a_server_listens_beyond_loopback_in_clear_text_only_if_told_so(more, is_let):
    for host in ("127.0.0.1", "::1", "localhost"):
        exposure.check(ServerSettings(host=host))
    for host in ("0.0.0.0", "10.0.0.5", "::", "gpu.example.org"):
        if is_let:
            exposure.check(ServerSettings(host=host, **more))
            continue
        with pytest.raises(Refused, match="without encryption") as caught:
            exposure.check(ServerSettings(host=host, **more))
        assert f"shoal server start --host {host} --tls-cert auto" in str(caught.value.hint)


def test_a_server_behind_a_proxy_is_not_private():
    assert exposure.is_private(ServerSettings())
    assert not exposure.is_private(ServerSettings(behind_proxy="127.0.0.1"))
    assert not exposure.is_private(ServerSettings(shared=True))
    assert not exposure.is_private(ServerSettings(host="10.0.0.5"))
