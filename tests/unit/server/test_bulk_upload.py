"""Bodies read past uvicorn's parser: whole, however they come, and the connection goes on behind them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from blake3 import blake3
from fastapi import FastAPI, Request

from shoal.core.errors import Forbidden
from shoal.server.bulk_upload import BulkUploadProtocol, received

LARGE = bytes(range(256)) * 40_000
TIMEOUT_S = 20.0


class Ready(uvicorn.Server):
    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def app() -> FastAPI:
    made = FastAPI()

    @made.post("/take")
    async def take(request: Request) -> dict[str, object]:
        await asyncio.sleep(0)
        body = await received(request)
        return {
            "size": len(body),
            "hash": blake3(body).hexdigest(),
            "body_reader": "shoal.body_reader" in request.scope["extensions"],
        }

    @made.post("/refuse")
    async def refuse() -> None:
        raise Forbidden

    @made.exception_handler(Forbidden)
    async def forbidden(_: Request, error: Forbidden):
        from fastapi.responses import JSONResponse

        return JSONResponse(error.to_wire(), 403)

    @made.post("/plain")
    async def plain(request: Request) -> dict[str, int]:
        return {"size": len(await request.body())}

    return made


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def port(request) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app(),
        http=BulkUploadProtocol,
        loop=request.param,
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = Ready(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    assert server.ready.wait(TIMEOUT_S)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


@pytest.fixture
def line(port) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as made:
        yield made


def head(size: int, path: str = "/take", *extra: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {size}", *extra, "", ""]).encode()


def answer(line: socket.socket) -> tuple[int, str]:
    """Status and body of one answer, and not a byte of the next."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += line.recv(1) or pytest.fail("the connection ended before an answer came")
    status = int(got.split()[1])
    size = next(int(part.split(b":")[1]) for part in got.lower().split(b"\r\n") if part.startswith(b"content-length"))
    body = b""
    while len(body) < size:
        body += line.recv(size - len(body))
    return status, body.decode()


def told(body: bytes) -> tuple[int, str]:
    return 200, f'{{"size":{len(body)},"hash":"{blake3(body).hexdigest()}","body_reader":true}}'


def test_large_bodies_arrive_whole_and_the_connection_is_used_again(line):
    for body in (LARGE, LARGE[::-1], b"small", b"", LARGE[:70_000]):
        line.sendall(head(len(body)) + body)
        assert answer(line) == told(body)


def test_a_body_may_come_long_after_its_head_and_in_any_pieces(line):
    line.sendall(head(len(LARGE)))
    for start, end in ((0, 1), (1, 65_537), (65_537, 65_540), (65_540, len(LARGE))):
        line.sendall(LARGE[start:end])
    assert answer(line) == told(LARGE)


def test_the_next_request_may_follow_at_once(line):
    line.sendall(head(len(LARGE)) + LARGE + head(5) + b"small" + head(9, "/plain") + b"and a lot")
    assert [answer(line) for _ in range(3)] == [told(LARGE), told(b"small"), (200, '{"size":9}')]


def test_a_body_that_is_cut_off_is_nobodys(line, port):
    line.sendall(head(len(LARGE)) + LARGE[:-1])
    line.shutdown(socket.SHUT_WR)
    assert answer(line)[0] == 500
    assert line.recv(1) == b"", "what comes next could not be told from the body"
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as other:
        other.sendall(head(3) + b"new")
        assert answer(other) == told(b"new")


def test_a_body_nobody_reads_is_skipped(line):
    line.sendall(head(len(LARGE), "/refuse") + LARGE)
    assert answer(line)[0] == 403
    line.sendall(head(3) + b"new")
    assert answer(line) == told(b"new")


def test_who_waits_to_be_told_to_go_on_is_told(line):
    line.sendall(head(5, "/take", "Expect: 100-continue"))
    assert line.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.sendall(b"small")
    assert '"body_reader":false' in answer(line)[1].replace(" ", "")


def test_a_closing_connection_is_closed(line):
    line.sendall(head(len(LARGE), "/take", "Connection: close") + LARGE)
    assert answer(line) == told(LARGE)
    assert line.recv(1) == b""
