"""Requests to the server for datasets and chunks: key, workspace, and waiting while the server is away."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shoal.client._http import Http, segment
from shoal.client.config import DEFAULT_WORKSPACE, find_target
from shoal.client.local import ensure_local_server, local_key, read_record
from shoal.core.datasets import DatasetView, FetchRequest
from shoal.core.errors import Corrupt, ShoalError, TimedOut, Unreachable
from shoal.core.settings import Layout
from shoal.data.forks import renew_after_fork
from shoal.store.hashing import verify
from shoal.store.wire import decode_frames

logger = logging.getLogger(__name__)

TIMEOUT_S = 600.0
"""Seconds a server may be away during streaming: enough for a restart or an upgrade, less than most collectives wait."""
START_TIMEOUT_S = 30.0
"""Seconds a server may be away before the first byte, when a wrong address is more likely than a restart."""
REQUEST_TIMEOUT_S = 60.0
"""Seconds without an answer after which a request fails."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0
_SAY_EVERY_S = 30.0
_CORRUPT_TRIES = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """Server, key and workspace. Values that are None come from the job's environment, else from the CLI's settings."""

    url: str | None = None
    key: str | None = None
    workspace: str | None = None

    def open(self) -> tuple[Http, str]:
        """Return a connection and the workspace to use."""
        token, url = os.environ.get("SHOAL_JOB_TOKEN"), os.environ.get("SHOAL_URL")
        if token and url and self.url is None and self.key is None:
            return Http(url, token), self.workspace or os.environ.get("SHOAL_WORKSPACE") or DEFAULT_WORKSPACE
        layout = Layout()
        target = find_target(layout, url=self.url, workspace=self.workspace)
        key = self.key or target.key
        if target.url is not None:
            return Http(target.url, key or local_key(layout, target.url)), target.workspace
        url, owner = ensure_local_server(layout, say=logger.info)

        def locate() -> str | None:
            record = read_record(layout)
            return record.url if record else None

        return Http(url, key or owner, locate=locate), target.workspace


class Remote:
    """Datasets and chunks of one workspace; usable from any thread. Waits while the server restarts or is busy.

    `_lock` protects only the opening of the connection, so that threads share one; `Http` itself is safe to share. `fetched` is a
    statistic and may miss an addition. A forked child opens its own connection.
    """

    def __init__(self, access: Access, *, timeout_s: float = TIMEOUT_S):
        self.access, self.timeout_s = access, timeout_s
        self.fetched = 0
        """Uncompressed bytes of chunks received so far."""
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._opened: tuple[Http, str] | None = None
        self._lock = threading.Lock()

    def datasets(self) -> list[DatasetView]:
        return self._patiently(lambda s: self._http.fetch(list[DatasetView], self._path("datasets")), starting=True)

    def dataset(self, reference: str) -> DatasetView:
        path = self._path("datasets", segment(reference))
        return self._patiently(lambda s: self._http.call(DatasetView, "GET", path, timeout_s=s), starting=True)

    def manifest(self, reference: str) -> bytes:
        path = self._path("datasets", segment(reference), "manifest")
        return self._patiently(lambda s: self._http.send("GET", path, timeout_s=s).content, starting=True)

    def fetch(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the chunks of these names, each verified."""
        found: dict[str, bytes] = {}
        try:
            found = self._fetch_framed(names, min(REQUEST_TIMEOUT_S, self.timeout_s))
        except (Unreachable, TimedOut, Corrupt) as error:
            # In a framed body, a chunk that the server cannot read breaks the connection; a single request gets an error.
            logger.debug("fetching %d chunks one by one: %s", len(names), error)
        for name in names:
            if name not in found:
                found[name] = self._patiently(lambda s, name=name: self._fetch_one(name, s))  # type: ignore[misc]
        self.fetched += sum(map(len, found.values()))
        return found

    def _fetch_framed(self, names: Sequence[str], timeout_s: float) -> dict[str, bytes]:
        body = FetchRequest(hashes=list(names))
        path = self._path("store", "fetch")
        reply = self._http.send("POST", path, body=body, repeatable=True, timeout_s=timeout_s)
        return dict(decode_frames([reply.content]))

    def _fetch_one(self, name: str, timeout_s: float) -> bytes:
        data = self._http.send("GET", self._path("store", "chunks", name), timeout_s=timeout_s).content
        verify(name, data)
        return data

    def _patiently(self, call: Callable[[float], T], *, starting: bool = False) -> T:
        """Call a function (with the seconds it may take) until it succeeds, with pauses, and log that we wait."""
        patience_s = min(START_TIMEOUT_S, self.timeout_s) if starting else self.timeout_s
        deadline, wait_s, said, corrupt = time.monotonic() + patience_s, _FIRST_WAIT_S, time.monotonic(), 0
        while True:
            left_s = deadline - time.monotonic()
            try:
                return call(max(0.1, min(REQUEST_TIMEOUT_S, left_s)))
            except (Unreachable, TimedOut, Corrupt) as error:
                corrupt += isinstance(error, Corrupt)
                left_s = deadline - time.monotonic()
                if corrupt >= _CORRUPT_TRIES:
                    raise
                if left_s <= 0:
                    raise self._gave_up(error, patience_s) from error
                if time.monotonic() - said > _SAY_EVERY_S:
                    logger.warning("Waiting for data: %s", error)
                    said = time.monotonic()
            time.sleep(min(wait_s * random.uniform(0.5, 1.0), left_s))  # noqa: S311  spreads retries, guards nothing
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _gave_up(self, error: ShoalError, patience_s: float) -> ShoalError:
        return type(error)(
            f"No data from {self._http.url} for {patience_s:.0f} seconds: {error.message}",
            hint=error.hint or "Check the server, then resume the job.",
        )

    @property
    def _http(self) -> Http:
        return self._connection()[0]

    def _path(self, *parts: str) -> str:
        return "/".join(["/workspaces", segment(self._connection()[1]), *parts])

    def _connection(self) -> tuple[Http, str]:
        with self._lock:
            if self._opened is None:
                self._opened = self.access.open()
            return self._opened
