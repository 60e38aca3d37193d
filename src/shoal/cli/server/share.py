"""`shoal server share`: make the private server of this data directory one for several people."""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from shoal.cli.shared.output import out
from shoal.cli.shared.prompt import read_answer, read_secret
from shoal.core.errors import Refused, ShoalError
from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.client.local import ServerRecord
    from shoal.core.people import UserView

PORT = 8443
_ROOT = 0


def share(
    *,
    email: str | None = None,
    name: str = "",
    password_stdin: bool = False,
    host: str = "0.0.0.0",  # noqa: S104
    port: int | None = None,
    tls_cert: str = "auto",
    tls_key: str | None = None,
    job_sandbox: Literal["S2", "S3"] | None = None,
) -> None:
    """Open your private server to other people, over TLS. You stay its owner.

    You get an account with your e-mail address and a password, which keeps all
    your jobs, data and workspaces and is the server's admin. The server is
    restarted and listens on the network; running jobs continue. Then invite
    people with `shoal workspace invite`.

    Jobs of a shared server are confined. Started by root, each job has its own
    user (S3). Otherwise jobs of all members run as your user, each of them
    with its own files only (S2).

    For example:

      shoal server share --email ada@example.org
      shoal server share --email ada@example.org --port 443 --tls-cert cert.pem --tls-key key.pem

    Parameters
    ----------
    email
        Your e-mail address, with which you sign in from now on.
    name
        Your name, as others see it.
    password_stdin
        Read the new password (at least 10 characters) from stdin instead of asking.
    host
        Address to listen on (default: all addresses of this machine).
    port
        Port to listen on (default: 8443, or any free one if that is taken).
    tls_cert
        Certificate chain (PEM file); auto (default): one signed by a private CA that the server makes.
    tls_key
        Private key (PEM file) of the certificate.
    job_sandbox
        Weakest sandbox of jobs (default: S3 for root, else S2).
    """
    from shoal.cli.login import create_own_key
    from shoal.client import Client
    from shoal.client.config import ClientConfig
    from shoal.client.local import ensure_local_server

    layout = Layout()
    _check_private(layout)
    url, key = ensure_local_server(layout, say=out.info)
    with Client(url, key) as client:
        _claim(client, email, name, password_stdin)
        made = create_own_key(client)
    sandbox = job_sandbox or ("S3" if os.geteuid() == _ROOT else "S2")
    record, fingerprint, pem = _restart(layout, host, port or _free_port(host), tls_cert, tls_key, sandbox)
    known = ClientConfig.load(layout)
    if known.url and known.url != record.public_url:
        out.warn(f"You were signed in to {known.url}; this server is the current one now.")
    ClientConfig(url=record.public_url, key=made.key, key_id=made.id, ca=pem).save(layout)
    with Client(record.public_url, made.key) as client:
        me = client.auth.me()
    facts = {"url": record.public_url, "ca_fingerprint": fingerprint, "user": me, "job_sandbox": sandbox}
    out.show(facts, lambda: _print(record, fingerprint, me, sandbox))


def _check_private(layout: Layout) -> None:
    from shoal.client.local import running_server
    from shoal.core.settings import ServerSettings

    record = running_server(layout)
    is_private = record.private if record else ServerSettings.load(layout).host in ("127.0.0.1", "localhost", "::1")
    if not is_private:
        raise Refused(
            "This server is already shared.", hint=f"Invite people: {out.prog} workspace invite bob@example.org"
        )


def _claim(client: Client, email: str | None, name: str, password_stdin: bool) -> None:
    """Give the owner an account with a password, unless an earlier attempt has done so."""
    from shoal.core.people import OWNER_EMAIL

    if client.auth.me().email != OWNER_EMAIL:
        return
    email = email or read_answer("Your e-mail: ")
    password = read_secret("New password", from_stdin=password_stdin, option="--password-stdin", twice=True)
    client.auth.claim_owner(email, password, name)


def _restart(
    layout: Layout, host: str, port: int, tls_cert: str, tls_key: str | None, sandbox: str
) -> tuple[ServerRecord, str | None, str | None]:
    """Restart the server with the new settings, or with the old ones if it refuses those."""
    from shoal.cli.server.app import options, server_path
    from shoal.client import local
    from shoal.client.server_record import private_ca
    from shoal.core.tls import fingerprint

    wanted = {"--host": host, "--port": port, "--tls-cert": server_path(tls_cert), "--tls-key": server_path(tls_key)}
    before = layout.settings_file.read_bytes() if layout.settings_file.exists() else b""
    local.stop_server(layout)
    try:
        record = local.start_server(layout, options(wanted | {"--job-sandbox": sandbox}), say=out.info).record
    except ShoalError:
        layout.settings_file.write_bytes(before)
        with suppress(ShoalError):  # the first error says what is wrong
            local.start_server(layout, say=out.info)
        raise
    pem = private_ca(record.url)
    return record, fingerprint(pem) if pem else None, pem


def _free_port(host: str) -> int:
    """Return the usual port if it is free, else 0 for any."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, PORT))
        except OSError:
            return 0
    return PORT


def _print(record: ServerRecord, fingerprint: str | None, me: UserView, sandbox: str) -> None:
    out.line(record.public_url)
    out.info(f"The server is shared now. You are its admin, {me.email}, and signed in on this machine.")
    if fingerprint:
        out.info(f"Its certificate is of a private CA, {fingerprint}; invitation links contain this.")
    if sandbox == "S2":
        out.info(
            "Jobs of all members run as your user, each confined to its own files (S2). With root: a user for each."
        )
    if shutil.which("bwrap") is None:
        out.warn("bubblewrap is not installed, so jobs will be refused: apt-get install bubblewrap")
    out.info(f"Invite people: {out.prog} workspace invite bob@example.org")
