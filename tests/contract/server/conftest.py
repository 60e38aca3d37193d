"""The fixtures that Shoal ships for tests of its server, and servers for it to fetch from and to export to."""

import threading

import pytest
from importing import stop_waiting
from local_s3 import S3, no_aws_environment
from local_web import Canary, running, web_server

from shoal.server.artifacts.imports.service import stop_imports
from shoal.testing.fixtures import *  # noqa: F403
from shoal.testing.server import add_person


@pytest.fixture
def web():
    with web_server() as made:
        yield made


@pytest.fixture
def canary():
    made = Canary()
    yield made
    made.close()


@pytest.fixture(scope="session")
def one_s3(s3_port):
    made = S3(s3_port)
    with running(made.server):
        yield made


@pytest.fixture
def s3(one_s3, monkeypatch, request):
    """The S3 service of all tests, with an empty bucket for this one."""
    no_aws_environment(monkeypatch)
    monkeypatch.setattr("shoal.server.artifacts.imports.s3._FIRST_WAIT_S", 0.01)
    one_s3.clean(f"b{abs(hash(request.node.nodeid)):x}")
    return one_s3


@pytest.fixture
def pctx(private_ctx):
    """A private server whose imports end with the test."""
    yield private_ctx
    private_ctx.live.closing = True
    stop_imports(private_ctx, timeout_s=20)
    # Those of a shared server in the same test end by themselves, shortly after their last import.
    stop_waiting(lambda: not [t for t in threading.enumerate() if t.name.startswith("import")], "an import goes on")


@pytest.fixture
def access(pctx):
    return add_person(pctx, "olga@example.org").access()
