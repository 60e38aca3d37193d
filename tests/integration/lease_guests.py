"""People at a lease's door: OpenSSH with a key, a certificate or a password, and what their tests ask a server."""

import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.core.leases import LeaseRequest
from shoal.testing.patience import patient


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two people's."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("mine", "theirs"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    return folder


@dataclass
class Guest:
    """Somebody with a key, at a lease's door."""

    lease: dict
    key: Path
    folder: Path

    def options(self, **more):
        known = self.folder / f"known-{self.lease['login']}"
        place = f"[{self.lease['host']}]:{self.lease['port']}"
        known.write_text(f"{place} {self.lease['host_key']}\n{self.lease['login']} {self.lease['own_host_key']}\n")
        settings = {"Port": self.lease["port"], "UserKnownHostsFile": known, "StrictHostKeyChecking": "yes", "IdentityFile": self.key,
                    "IdentitiesOnly": "yes", "BatchMode": "yes", "LogLevel": "ERROR"} | more  # fmt: skip
        return ["-F", "none", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]

    @property
    def address(self):
        return f"{self.lease['login']}@{self.lease['host']}"

    def ssh(self, *words, check=0, **options):
        done = subprocess.run(
            ["ssh", *self.options(), self.address, *words], capture_output=True, timeout=patient(60), **options
        )
        assert check is None or done.returncode == check, done
        return done

    def start(self, *words):
        argv = ["ssh", *self.options(), *words]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def refusal(self):
        done = self.ssh("true", check=255)
        return done.stderr.decode()


def rent(server, keys, name, *, key="mine", **asked):
    """Rent a machine by the API, because the CLI is slower."""
    with server.client() as client:
        made = client.leases.rent(LeaseRequest(name=name, ssh_keys=[(keys / f"{key}.pub").read_text()], **asked))
        return client.leases.wait(made.id, timeout_s=patient(60)).model_dump(mode="json") | {"password": made.password}


def job_of(server, lease):
    """The view of a lease's job."""
    with server.client() as client:
        return client.jobs.get(lease["job"])


def release(server, name):
    with server.client() as client:
        client.leases.release(name)


def lease_of(server, name):
    with server.client() as client:
        return client.leases.get(name).model_dump(mode="json")


def said(shell, line, answer):
    """Type it, and read until the answer."""
    shell.stdin.write(f"{line}\n".encode())
    shell.stdin.flush()
    seen = b""
    while answer not in seen and (byte := shell.stdout.read1(4096)):
        seen += byte
    return answer in seen


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def asked(port):
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as peer:
            peer.sendall(b"hello")
            return peer.recv(100)
    except OSError:
        return None


def certified(key, authority, login, validity):
    """A new key with a certificate from this authority."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signing = ["ssh-keygen", "-q", "-s", authority, "-I", "test", "-n", login, "-V", validity, f"{key}.pub"]
    subprocess.run(signing, check=True)
    return key


def with_password(lease, password, keys, folder):
    asker = folder / "asker"
    asker.write_text('#!/bin/sh\necho "$THE_PASSWORD"\n')
    asker.chmod(0o700)
    guest = Guest(lease, keys / "none", keys)
    options = guest.options(BatchMode="no", NumberOfPasswordPrompts=1, PubkeyAuthentication="no")
    env = {**os.environ, "SSH_ASKPASS": str(asker), "SSH_ASKPASS_REQUIRE": "force", "THE_PASSWORD": password}
    argv = ["ssh", *options, guest.address, "echo in"]
    return subprocess.run(
        argv, capture_output=True, timeout=patient(60), env=env, stdin=subprocess.DEVNULL, check=False
    )
