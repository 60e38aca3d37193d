"""A server of many accounts and a private one, each in a directory of its own."""

import pytest

from shoal.testing.server import AppClient, add_person, make_app, make_context


@pytest.fixture
def ctx(tmp_path):
    """A server that many share."""
    context = make_context(tmp_path / "shared", private=False)
    yield context
    context.db.close()


@pytest.fixture
def private_ctx(tmp_path):
    context = make_context(tmp_path / "private", private=True)
    yield context
    context.db.close()


@pytest.fixture
def app(ctx):
    return make_app(ctx)


@pytest.fixture
def anna(ctx):
    return add_person(ctx, "anna@example.org")


@pytest.fixture
def berta(ctx):
    return add_person(ctx, "berta@example.org")


@pytest.fixture
def as_anna(app, anna):
    return AppClient(app, anna.key)


@pytest.fixture
def as_berta(app, berta):
    return AppClient(app, berta.key)


@pytest.fixture
def stranger(app):
    return AppClient(app)
