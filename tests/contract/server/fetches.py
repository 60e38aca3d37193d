"""Helpers for tests of fetching: a fetcher with short waits, and the message of a fetch that must fail."""

import os
from contextlib import contextmanager

import pytest

from shoal.core.errors import ShoalError
from shoal.server.artifacts.imports.fetch import Fetcher
from shoal.server.ssrf_guard import Guard

DATA = os.urandom(3_000_000)
OPEN = Guard(private=True)


@contextmanager
def fetching(guard=OPEN, **options):
    options = {"max_bytes": 100_000_000, "first_wait_s": 0.01, "stall_s": 10.0} | options
    with Fetcher(guard, **options) as made:
        yield made


def fetch(url, path, guard=OPEN, **options):
    with fetching(guard, **options) as made:
        return made.fetch(url, path)


def refusal(url, path, guard=OPEN, kind=ShoalError, **options):
    with pytest.raises(kind) as caught:
        fetch(url, path, guard, **options)
    assert "\n" not in caught.value.message
    return caught.value.message
