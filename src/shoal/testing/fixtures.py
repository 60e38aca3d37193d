"""Pytest fixtures for tests of a server in this process: a shared and a private server, people, and their clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from shoal.server.context import Context
from shoal.testing.server import AppClient, Person, add_person, make_app, make_context

__all__ = ["anna", "app", "as_anna", "as_berta", "berta", "ctx", "private_ctx", "stranger"]


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """Server of a team (not private)."""
    context = make_context(tmp_path / "shared", private=False)
    yield context
    context.db.close()


@pytest.fixture
def private_ctx(tmp_path: Path) -> Iterator[Context]:
    context = make_context(tmp_path / "private", private=True)
    yield context
    context.db.close()


@pytest.fixture
def app(ctx: Context) -> FastAPI:
    return make_app(ctx)


@pytest.fixture
def anna(ctx: Context) -> Person:
    return add_person(ctx, "anna@example.org")


@pytest.fixture
def berta(ctx: Context) -> Person:
    return add_person(ctx, "berta@example.org")


@pytest.fixture
def as_anna(app: FastAPI, anna: Person) -> AppClient:
    return AppClient(app, anna.key)


@pytest.fixture
def as_berta(app: FastAPI, berta: Person) -> AppClient:
    return AppClient(app, berta.key)


@pytest.fixture
def stranger(app: FastAPI) -> AppClient:
    return AppClient(app)
