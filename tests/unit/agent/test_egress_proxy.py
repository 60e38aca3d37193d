"""The proxy of a sandbox connects to public addresses, or only to the hosts an administrator has named."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.agent.sandbox.egress_proxy import SOCKET, Egress


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def ask(folder: Path, target: str) -> str:
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(20)
        end.connect(str(folder / SOCKET))
        end.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
        return end.recv(1000).decode()


@pytest.mark.parametrize("allowed", [[], ["example.org"], ["*"], ["127.*"]])
def test_an_address_that_is_not_public_and_not_named_is_refused(tmp_path: Path, port: int, allowed: list[str]) -> None:
    with closing(Egress(tmp_path, allowed)):
        assert "403" in ask(tmp_path, f"127.0.0.1:{port}")


def test_a_host_that_is_named_may_be_private_and_no_other_is_reached(tmp_path: Path, port: int) -> None:
    with closing(Egress(tmp_path, ["127.0.0.1", "*.example.org"])):
        assert "200" in ask(tmp_path, f"127.0.0.1:{port}")
        assert "not among the hosts" in ask(tmp_path, "1.1.1.1:443")
