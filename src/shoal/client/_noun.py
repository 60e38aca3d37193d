"""Base classes and helpers of the modules for one noun each."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from shoal.client._http import Http, segment
from shoal.client.waiting import Clock, poll
from shoal.core.errors import TimedOut


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def status(self) -> str: ...


Seen = TypeVar("Seen", bound=_Named)


class Noun:
    """Operations on one kind of object of the server."""

    def __init__(self, http: Http):
        self._http = http


class WorkspaceNoun:
    """Operations on one kind of object of a workspace."""

    def __init__(self, http: Http, workspace: str):
        self._http = http
        self._workspace = workspace

    def _path(self, *parts: str) -> str:
        return "/".join(["/workspaces", segment(self._workspace), *parts])


def wait_until(
    http: Http,
    look: Callable[[], Seen],
    is_over: Callable[[Seen], bool],
    *,
    what: str,
    timeout_s: float | None = None,
    clock: Clock = time.monotonic,
) -> Seen:
    """Poll until `is_over`, and return the last view; raise TimedOut after `timeout_s`."""
    view = poll(look, is_over, within_s=timeout_s, sleep=http.sleep, clock=clock)
    if not is_over(view):
        raise TimedOut(f"{what} '{view.name}' is still {view.status} after {timeout_s:.0f} seconds.")
    return view
