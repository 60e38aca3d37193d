"""Download of URLs that users give: checked by the SSRF guard, limited in size, resumed after a break, in constant memory.

Start with `fetcher(ctx)`. `fetch` writes to a file, `read` (for small bodies) to memory.
"""

from __future__ import annotations

import logging
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from shoal.core.errors import Refused, ShoalError, SourceTooLarge, TimedOut, Unreachable
from shoal.server.artifacts.imports.http_answers import (
    Later,
    check_status,
    continues,
    demand_framing,
    facts_of,
    length_of,
    strong_etag,
)
from shoal.server.artifacts.imports.partial_file import PartFile
from shoal.server.context import Context
from shoal.server.ssrf_guard import PORTS, Guard, PinnedTransport, Stopped, display_url
from shoal.store.ignore import human_size
from shoal.store.pack import Progress

logger = logging.getLogger(__name__)

MAX_REDIRECTS = 5
STALL_S = 60.0
_TRIES = 6
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_ENOUGH = 1 << 20
"""Bytes of progress after which the count of failures is reset."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_AGENT = "shoal"


@dataclass(frozen=True, slots=True)
class Fetched:
    """Facts about a downloaded file."""

    size: int
    name: str
    """Name of the file at its source; safe, and without folders."""
    content_type: str


def fetcher(ctx: Context, *, max_bytes: int, trusted: frozenset[tuple[str, int]] = frozenset()) -> Fetcher:
    """Return a fetcher with the limits of this server. Close it when done."""
    guard = Guard(private=ctx.private, trusted=trusted)
    return Fetcher(guard, max_bytes=max_bytes, stop=lambda: ctx.live.closing)


class Fetcher:
    """HTTP client for downloads; thread-safe. Raises Stopped soon after `stop()` becomes true."""

    def __init__(
        self,
        guard: Guard,
        *,
        max_bytes: int,
        stop: Callable[[], bool] = lambda: False,
        stall_s: float = STALL_S,
        first_wait_s: float = _FIRST_WAIT_S,
        tls: ssl.SSLContext | None = None,
    ):
        self.guard, self.max_bytes = guard, max_bytes
        self._stop, self._first_wait_s = stop, first_wait_s
        self._transport = PinnedTransport(guard, stall_s=stall_s, stop=stop, tls=tls)

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def fetch(
        self,
        url: str,
        path: Path,
        *,
        headers: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        expect: Progress | None = None,
    ) -> Fetched:
        """Download to the file `path`, continuing an earlier call that was interrupted.

        `expect` is called with the length, if it is known, each time before the bytes are counted from zero.
        """
        target, report, expect = self.guard.parse(url), progress or _ignore, expect or _ignore
        with PartFile(path) as part:
            if part.total is not None:
                expect(part.total)
            report(part.offset)
            tries = _Tries(display_url(target), self._first_wait_s, self._stop)
            while not part.is_complete:
                try:
                    self._continue(target, dict(headers or {}), part, report, expect)
                except (httpx.TransportError, Later, Unreachable) as error:
                    tries.failed(error, part.offset, part.total)
            return Fetched(part.offset, part.facts["name"], part.facts["type"])

    def read(self, url: str, *, headers: Mapping[str, str] | None = None) -> tuple[bytes, httpx.Headers]:
        """Return the whole body and the headers of the response."""
        target = self.guard.parse(url)
        tries = _Tries(display_url(target), self._first_wait_s, self._stop)
        while True:
            try:
                with self._answer(target, dict(headers or {})) as response:
                    body, total = bytearray(), length_of(response, target)
                    self._check_size(total or 0, target)
                    for block in response.iter_raw():
                        body += block
                        self._check_size(len(body), target)
                    return bytes(body), response.headers
            except (httpx.TransportError, Later, Unreachable) as error:
                tries.failed(error, 0, None)

    def _continue(
        self, target: httpx.URL, headers: dict[str, str], part: PartFile, report: Progress, expect: Progress
    ) -> None:
        """Send one request and write as much of its response as arrives."""
        if part.offset and part.version:
            headers |= {"Range": f"bytes={part.offset}-", "If-Range": part.version}
        with self._answer(target, headers) as response:
            if not continues(response, part, report):
                report(-part.offset)
                total = length_of(response, target)
                self._check_size(total or 0, target)
                part.start(version=strong_etag(response), total=total, facts=facts_of(response, target))
                if total is not None:
                    expect(total)
            if part.total is None:
                demand_framing(response, target)
            for block in response.iter_raw():
                self._check_size(part.offset + len(block), target)
                part.write(block)
                report(len(block))
        if part.total is None or part.offset == part.total:
            part.finish()
        else:
            raise Later("it sent less than it announced")

    @contextmanager
    def _answer(self, target: httpx.URL, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Yield the final response.

        Each redirect is checked like the first URL; credentials are sent only to the first host.
        """
        url = target
        headers = {"User-Agent": _AGENT, "Accept": "*/*", "Accept-Encoding": "identity"} | headers
        for _ in range(MAX_REDIRECTS + 1):
            sent = headers if _origin(url) == _origin(target) else _without_authorization(headers)
            response = self._transport.handle_request(httpx.Request("GET", url, headers=sent))
            try:
                if response.status_code in _REDIRECTS and "location" in response.headers:
                    url = self._next(url, response.headers["location"])
                    continue
                check_status(response, target)
                yield response
                return
            finally:
                response.close()
        raise Refused(f"{display_url(target)} redirects more than {MAX_REDIRECTS} times.")

    def _next(self, url: httpx.URL, location: str) -> httpx.URL:
        try:
            joined = str(url.join(location))
        except (httpx.InvalidURL, ValueError):
            raise Refused(f"{display_url(url)} redirects to something that is not a URL.") from None
        following = self.guard.parse(joined)
        if url.scheme == "https" and following.scheme == "http":
            raise Refused(
                f"{display_url(url)} redirects from https to http, where others could change the data on its way."
            )
        return following

    def _check_size(self, size: int, target: httpx.URL) -> None:
        if size > self.max_bytes:
            raise SourceTooLarge(
                f"{display_url(target)} is larger than the {human_size(self.max_bytes)} that may be fetched."
            )


class _Tries:
    """Counter of failures without progress; waits longer after each, then raises."""

    def __init__(self, what: str, first_wait_s: float, stop: Callable[[], bool]):
        self._what, self._first_wait_s, self._stop = what, first_wait_s, stop
        self._count, self._furthest = 0, 0

    def failed(self, error: Exception, offset: int, total: int | None) -> None:
        if offset - self._furthest >= _ENOUGH:
            self._count, self._furthest = 0, offset
        self._count += 1
        if self._count >= _TRIES or "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise self._final(error, offset, total) from error
        wait_s = self._first_wait_s * 2 ** (self._count - 1) * random.uniform(0.5, 1.0)  # noqa: S311  spreads retries
        if isinstance(error, Later) and error.wait_s is not None:
            wait_s = error.wait_s
        logger.info("%s: %s; next try in %.1f s", self._what, error, wait_s)
        pause(min(wait_s, _LONGEST_WAIT_S), self._stop)

    def _final(self, error: Exception, offset: int, total: int | None) -> ShoalError:
        if isinstance(error, ShoalError):
            return error
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return Refused(f"The certificate of the host of {self._what} cannot be verified.")
        if isinstance(error, httpx.TimeoutException):
            return TimedOut(f"{self._what} does not answer, or sends too slowly.")
        if offset:
            of = f" of {human_size(total)}" if total else ""
            return Unreachable(f"The connection to {self._what} keeps breaking, last after {human_size(offset)}{of}.")
        return Unreachable(f"{self._what} cannot be fetched: {_one_line(error)}.")


def _ignore(_: int) -> None:
    return None


def pause(seconds: float, stop: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if stop():
            raise Stopped
        time.sleep(min(0.2, left))


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or PORTS[url.scheme]


def _without_authorization(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() != "authorization"}


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(c if c.isprintable() else "?" for c in text)[:200].rstrip(".")
