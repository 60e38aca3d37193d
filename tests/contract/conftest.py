"""An S3 service for all contract tests: a real server of the protocol, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from shoal.testing.leaks import keep

_SERVER = """
import logging; logging.getLogger('werkzeug').setLevel(logging.ERROR)
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
server = make_server('127.0.0.1', 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.port, flush=True); server.serve_forever()
"""


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """The port it listens on. Whoever uses it makes a bucket of their own."""
    pytest.importorskip("moto", reason="S3 tests need moto[server]")
    pytest.importorskip("obstore", reason="S3 tests need the extra 's3'")
    child = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    keep(child.pid)
    try:
        assert child.stdout is not None
        port = child.stdout.readline().strip()
        assert port, "the S3 server did not start"
        yield int(port)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
