"""HTTP requests with retries; errors of the API become exceptions of `shoal.core.errors`.

No other module of the client speaks HTTP.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter, ValidationError

from shoal import __version__
from shoal.client._bulk_upload import ConnectionPool, Piece
from shoal.client._httpx import httpx
from shoal.client._sick_server import SickServerWait, is_sick, patience_s
from shoal.client.config import check_url, is_loopback, is_unknown_host, server_tls
from shoal.core.errors import Internal, InvalidName, ShoalError, TimedOut, Unreachable, from_wire
from shoal.core.tls import untrusted

logger = logging.getLogger(__name__)
T = TypeVar("T")

PREFIX = "/api/v1"
PAUSES_S: tuple[float, ...] = (0.1, 0.3, 0.8, 1.5)
"""Seconds between attempts of a call that may be repeated: long enough for a server that is restarting."""
CONNECT_TIMEOUT_S = 5.0
TIMEOUT_S = 60.0

if TYPE_CHECKING:
    from shoal.store.wire import Fillable

_BUSY = frozenset({502, 503, 504})
_SICK = frozenset({503, 507})
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})


class Http:
    """HTTP connection to one server. `locate` returns the server's present URL, for servers that may restart at another one."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        locate: Callable[[], str | None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        more: Mapping[str, str] | None = None,
    ):
        """Prepare the connection. `more`: headers to send with every request; they go to this server only."""
        self.url = check_url(url)
        self.pauses_s = PAUSES_S
        self.patience_s = patience_s()
        """Longest wait of a request for a server whose database is busy or whose disk does not work."""
        self.on_wait: Callable[[str], None] = logger.warning
        """Called with one line when such a wait begins."""
        self.sleep = sleep
        self._locate = locate
        headers = {"User-Agent": f"shoal/{__version__}", "Accept": "application/json"}
        headers |= more or {}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._headers = headers
        self._client = httpx.Client(
            headers=headers,
            # An SSL context costs 90 ms, and http:// never uses it: redirects are not followed.
            verify=server_tls(self.url) if self.url.startswith("https://") else False,
            # A proxy has no way to reach this machine's loopback.
            trust_env=not is_loopback(self.url),
            # The key goes to the server it was made for and nowhere else.
            follow_redirects=False,
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        )
        self._uploads = ConnectionPool(CONNECT_TIMEOUT_S)

    def close(self) -> None:
        self._client.close()
        self._uploads.close()

    def fetch(self, kind: type[T], path: str, **params: Any) -> T:
        """GET a path and return the answer as a schema or a list of schemas."""
        return parse(kind, self.send("GET", path, params=params))

    def call(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: BaseModel | None = None,
        *,
        repeatable: bool | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> T:
        """Send a schema and return the answer as a schema."""
        return parse(kind, self.send(method, path, body=body, repeatable=repeatable, timeout_s=timeout_s))

    def post_page(self, kind: type[T], path: str) -> T:
        """POST to a page of the console, whose path has no API prefix."""
        try:
            response = self._client.post(f"{self.url}{path}")
        except httpx.TransportError as error:
            raise self.unreachable(error) from error
        if not response.is_success:
            raise self.error(response)
        return parse(kind, response)

    def send(
        self,
        method: str,
        path: str,
        *,
        body: BaseModel | bytes | list[Piece] | None = None,
        params: Mapping[str, Any] | None = None,
        repeatable: bool | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> httpx.Response:
        """Send a request and return the answer.

        It is retried with increasing pauses if that is safe: the server never received it, or it may be repeated.
        """
        repeatable = method in _REPEATABLE if repeatable is None else repeatable
        may_have_happened = False
        for pause_s in (*self.pauses_s, None):
            try:
                response = self._send_until_well((method, path, body, params, timeout_s), repeatable=repeatable)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if pause_s is None or not self._worth_another_try(error):
                    raise self.unreachable(error) from error
            except httpx.TimeoutException as error:
                message = f"{self.url} did not answer within {timeout_s:.0f} seconds."
                raise TimedOut(message, hint=self._if_slow) from error
            except httpx.TransportError as error:
                may_have_happened = True
                if pause_s is None or not repeatable:
                    raise self.unreachable(error) from error
            else:
                if response.is_success:
                    return response
                if method == "DELETE" and response.status_code == 404 and may_have_happened:
                    return response
                refusal = self.error(response)
                is_safe = repeatable or refusal.details.get("unchanged")
                if pause_s is None or not is_safe or response.status_code not in _BUSY:
                    raise refusal
            logger.debug("%s %s: trying again in %s s", method, path, pause_s)
            self.sleep(pause_s)
        raise AssertionError("unreachable")  # the last round either returns or raises

    def _send_until_well(self, request: tuple[Any, ...], *, repeatable: bool) -> httpx.Response:
        """Send a request again for as long as the server's database is busy or its disk does not work."""
        wait = SickServerWait(self.patience_s, self.on_wait)
        while True:
            response = self._send_once(*request)
            if response.status_code not in _SICK:
                return response
            error = self.error(response)
            if not is_sick(error, repeatable=repeatable):
                return response
            if (pause_s := wait.next_pause_s(error, response.headers)) is None:
                raise error
            self.sleep(pause_s)

    @contextmanager
    def stream(self, path: str, params: Mapping[str, Any], *, silence_s: float) -> Iterator[Iterator[bytes]]:
        """GET a path and yield the body as it arrives.

        Never retried here. Without a byte for `silence_s` the connection counts as lost.
        """
        timeout = httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S, read=silence_s)
        request = self._client.build_request("GET", self._full(path), params=_given(params), timeout=timeout)
        request.headers["Accept"] = "text/event-stream"
        with self._open(request) as response:
            yield response.iter_bytes()

    @contextmanager
    def download(self, path: str) -> Iterator[tuple[int, Iterator[bytes]]]:
        """GET a large body: yield its size (0 if unknown) and its bytes as they arrive. Never retried here."""
        request = self._client.build_request("GET", self._full(path), headers={"Accept": "*/*"})
        try:
            with self._open(request) as response:
                yield int(response.headers.get("Content-Length") or 0), response.iter_bytes()
        except httpx.TransportError as error:
            raise self.unreachable(error) from error

    @contextmanager
    def receive(self, path: str, body: BaseModel, *, silence_s: float) -> Iterator[Iterator[bytes]]:
        """POST a schema and yield the body as it arrives. Never retried here; a broken connection raises Unreachable."""
        timeout = httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S, read=silence_s)
        request = self._client.build_request(
            "POST",
            self._full(path),
            content=body.model_dump_json().encode(),
            headers={"Content-Type": "application/json", "Accept": "*/*"},
            timeout=timeout,
        )
        try:
            with self._open(request) as response:
                yield response.iter_bytes()
        except httpx.TransportError as error:
            raise self.unreachable(error) from error

    @contextmanager
    def receive_bulk(self, path: str, body: BaseModel, *, silence_s: float) -> Iterator[Fillable | Iterator[bytes]]:
        """Like `receive`, but yield an object that reads into the caller's memory where possible, which is far cheaper."""
        if not ConnectionPool.supports(self.url):
            with self.receive(path, body, silence_s=silence_s) as pieces:
                yield pieces
            return
        headers = self._headers | {"Content-Type": "application/json", "Accept": "*/*"}
        try:
            sent = [body.model_dump_json().encode()]
            with self._uploads.post(self._full(path), sent, headers, silence_s) as found:
                if not 200 <= found.status < 300:
                    raise self.error(httpx.Response(found.status, headers=found.getheaders(), content=found.read()))
                yield found
        except httpx.TransportError as error:
            raise self.unreachable(error) from error

    def relocate(self) -> bool:
        """Look up the server's present URL and use it; return whether it has changed."""
        found = self._locate() if self._locate else None
        if not found or found == self.url:
            return False
        self.url = check_url(found)
        return True

    @property
    def _if_slow(self) -> str:
        return (
            "It may be busy: shoal server status" if is_loopback(self.url) else "It may be busy, or the network slow."
        )

    def unreachable(self, error: Exception) -> Unreachable:
        """Return the error for a call without an answer. It distinguishes a slow server from one that is down."""
        # On loopback only a busy server makes connecting slow; on a network the address may be wrong.
        is_elsewhere = isinstance(error, httpx.ConnectTimeout) and not is_loopback(self.url)
        if isinstance(error, httpx.TimeoutException) and not is_elsewhere:
            return Unreachable(f"The server at {self.url} is slow to answer.", hint=self._if_slow)
        if (reason := untrusted(error)) is not None:
            return Unreachable(
                f"The certificate of {self.url} cannot be trusted: {reason}.",
                hint="If it has a private CA: shoal login --fingerprint sha256:… (an admin sees it in `shoal server status`), "
                "or set SHOAL_CA to the CA's PEM file.",
            )
        why = "is not known to the name service" if is_unknown_host(error) else "does not answer"
        hint = (
            "Start it: shoal server start"
            if is_loopback(self.url)
            else "Check the address (--url, SHOAL_URL) and the network."
        )
        return Unreachable(f"The server at {self.url} {why}.", hint=hint)

    def error(self, response: httpx.Response) -> ShoalError:
        """Return the exception for an unsuccessful answer."""
        if response.is_redirect:
            target = response.headers.get("Location", "another address")
            return Unreachable(
                f"{self.url} redirects to {target}. Redirects are not followed, because your key belongs to the first address.",
                hint="If that is your server, use its address: --url or SHOAL_URL",
            )
        try:
            body = response.json()
        except ValueError:
            body = None
        if isinstance(body, dict) and isinstance(body.get("error"), dict):
            return from_wire(body, response.status_code)
        if response.status_code in _BUSY:
            return Unreachable(f"The server at {self.url} is not available (HTTP {response.status_code}).")
        return Unreachable(
            f"{self.url} answered HTTP {response.status_code}, but it is not a Shoal server.",
            hint="Check the address: --url or SHOAL_URL",
        )

    def _send_once(
        self,
        method: str,
        path: str,
        body: BaseModel | bytes | list[Piece] | None,
        params: Mapping[str, Any] | None,
        timeout_s: float,
    ) -> httpx.Response:
        if isinstance(body, list):
            return self._post_pieces(path, body, timeout_s)
        headers, content = {}, b""
        if isinstance(body, BaseModel):
            headers["Content-Type"], content = "application/json", body.model_dump_json().encode()
        elif body is not None:
            headers["Content-Type"], content = "application/octet-stream", body
        return self._client.request(
            method,
            self._full(path),
            params=_given(params or {}),
            content=content or None,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
        )

    @contextmanager
    def _open(self, request: httpx.Request) -> Iterator[httpx.Response]:
        """Yield a successful answer whose body is still to be read; raise its error otherwise."""
        response = self._client.send(request, stream=True)
        try:
            if not response.is_success:
                response.read()
                raise self.error(response)
            yield response
        finally:
            response.close()

    def _post_pieces(self, path: str, pieces: list[Piece], timeout_s: float) -> httpx.Response:
        """Send a body as the pieces it was made of: joining them would cost more than sending them."""
        headers = {"Content-Type": "application/octet-stream"}
        if ConnectionPool.supports(self.url):
            with self._uploads.post(self._full(path), pieces, self._headers | headers, timeout_s) as found:
                return httpx.Response(found.status, headers=found.getheaders(), content=found.read())
        return self._client.post(
            self._full(path),
            content=iter(map(bytes, pieces)),
            headers=headers | {"Content-Length": str(sum(map(len, pieces)))},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
        )

    def _full(self, path: str) -> str:
        return f"{self.url}{PREFIX}{path}"

    def _worth_another_try(self, error: Exception) -> bool:
        return self.relocate() or not is_unknown_host(error)


def parse(kind: type[T], response: httpx.Response) -> T:
    """Return an answer as a schema; raise Internal if it does not match."""
    try:
        return TypeAdapter(kind).validate_json(response.content)
    except ValidationError as error:
        raise Internal(
            "The answer of the server is not valid.",
            hint="Client and server may have different versions: shoal version",
        ) from error


def segment(name: str) -> str:
    """Return a name quoted as one segment of a path, so that no name can lead to another route."""
    if name in ("", ".", ".."):
        raise InvalidName(f"{name!r} is not a usable name. {InvalidName.__doc__}")
    return quote(name, safe="")


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in params.items() if v is not None}
