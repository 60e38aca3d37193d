"""Limits of connections: what a stranger may send, how slowly, and how often; and who is no stranger."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from fastapi import FastAPI, Request

from shoal.core.addresses import network_of
from shoal.server.edge import connections
from shoal.server.edge.connections import LimitedProtocol, Strangers, authenticated
from shoal.server.edge.listener import ListenerThread, listen
from shoal.testing.engines import eventually

ASK = b"GET /range HTTP/1.1\r\nHost: x\r\n"
TIMEOUT_S = 30.0


def app() -> FastAPI:
    made = FastAPI()

    @made.get("/range")
    async def ranges(request: Request) -> dict[str, bool]:
        return {"range": "range" in request.headers}

    @made.get("/known")
    def known(request: Request) -> str:
        authenticated(request)
        return "known"

    @made.post("/take")
    async def take(request: Request) -> int:
        return len(await request.body())

    return made


@pytest.fixture
def edge(monkeypatch) -> Iterator[SimpleNamespace]:
    """A listener whose limits are small, with a way to connect to it."""
    strangers = Strangers(per_address=3, total=4)
    monkeypatch.setattr(LimitedProtocol, "strangers", strangers)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = ListenerThread(app(), listener, name="edge test")
    lines: list[socket.socket] = []

    def connect() -> socket.socket:
        lines.append(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
        return lines[-1]

    yield SimpleNamespace(connect=connect, strangers=strangers)
    for line in lines:
        line.close()
    server.request_end()
    server.join()


def status(line: socket.socket) -> int | None:
    """Return the status of the next answer; None if the connection is closed instead."""
    try:
        answer = whole_answer(line)
    except ConnectionResetError:
        return None
    return int(answer.split(b" ")[1]) if answer else None


def whole_answer(line: socket.socket) -> bytes:
    """Return the next answer with its body, which may come in pieces."""
    answer = line.recv(1 << 16)
    while answer and len(answer.partition(b"\r\n\r\n")[2]) < _length(answer):
        answer += line.recv(1 << 16)
    return answer


def _length(answer: bytes) -> int:
    found = re.search(rb"content-length: (\d+)", answer)
    return int(found.group(1)) if found and b"\r\n\r\n" in answer else 1 << 20


def is_closed(line: socket.socket) -> bool:
    try:
        return line.recv(1 << 16) == b""
    except ConnectionResetError:
        return True


def test_an_ordinary_request_is_answered(edge):
    line = edge.connect()
    for _ in range(3):
        line.sendall(ASK + b"Range: bytes=0-1\r\n\r\n")
        answer = whole_answer(line)
        assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"range": True}


def test_five_thousand_headers_are_refused(edge):
    line = edge.connect()
    line.sendall(ASK + b"".join(b"X-%d: 1\r\n" % n for n in range(5_000)))
    assert status(line) == 431


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["unfinished", "whole"])
def test_a_header_larger_than_the_limit_is_refused(edge, end):
    line = edge.connect()
    line.sendall(ASK + b"X-Long: " + b"a" * (connections.MOST_HEAD_BYTES + 1) + end)
    assert status(line) == 431


def test_ten_thousand_ranges_are_ignored(edge):
    line = edge.connect()
    line.sendall(ASK + b"Range: bytes=" + b",".join([b"0-1"] * 10_000) + b"\r\n\r\n")
    answer = whole_answer(line)
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"range": False}


def test_requests_that_pile_up_on_one_connection_are_refused(edge):
    line = edge.connect()
    line.sendall((ASK + b"\r\n") * 5_000)
    seen = b""
    try:
        while piece := line.recv(1 << 16):
            seen += piece
    except ConnectionResetError:
        pass
    assert seen.count(b"HTTP/1.1 200") <= connections.MOST_PIPELINED + 1


def test_noise_is_a_bad_request_and_an_upgrade_is_ignored(edge):
    line = edge.connect()
    line.sendall(b"\x16\x03\x01 not http\r\n\r\n")
    assert status(line) == 400
    line = edge.connect()
    line.sendall(ASK + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert status(line) == 200


@pytest.mark.parametrize("begun", [b"", b"GET / HT", ASK], ids=["silent", "in the first line", "between headers"])
def test_a_header_that_does_not_arrive_is_given_up(edge, monkeypatch, begun):
    monkeypatch.setattr(LimitedProtocol, "HEAD_S", 0.2)
    line = edge.connect()
    line.sendall(begun)
    assert status(line) == 408
    assert is_closed(line)


def test_a_second_header_has_its_own_time(edge, monkeypatch):
    monkeypatch.setattr(LimitedProtocol, "HEAD_S", 0.2)
    line = edge.connect()
    line.sendall(ASK + b"\r\n")
    assert status(line) == 200
    line.sendall(ASK)
    assert status(line) == 408


def test_a_body_that_stands_still_is_given_up_and_a_slow_one_is_not(edge, monkeypatch):
    monkeypatch.setattr(LimitedProtocol, "PACE_S", 0.3)
    line = edge.connect()
    line.sendall(b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nx")
    assert is_closed(line)
    monkeypatch.setattr(LimitedProtocol, "LEAST_BYTES", 1)
    monkeypatch.setattr(LimitedProtocol, "PACE_S", 5.0)
    line = edge.connect()
    line.sendall(b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
    for _ in range(3):
        line.sendall(b"x")
    assert status(line) == 200


def test_strangers_have_few_connections_and_people_who_signed_in_many(edge):
    lines = [edge.connect() for _ in range(3)]
    for line in lines:
        line.sendall(ASK + b"\r\n")
        assert status(line) == 200
    assert status(edge.connect()) in (503, None)
    for line in lines:
        line.sendall(b"GET /known HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(line) == 200
    line = edge.connect()
    line.sendall(ASK + b"\r\n")
    assert status(line) == 200


def test_a_connection_that_ends_makes_room(edge):
    lines = [edge.connect() for _ in range(3)]
    for line in lines:
        line.sendall(ASK + b"\r\n")
        assert status(line) == 200
        line.close()

    def is_let_in() -> bool:
        line = edge.connect()
        line.sendall(ASK + b"\r\n")
        return status(line) == 200

    eventually(is_let_in)


def test_the_proxys_connections_are_limited_only_in_total():
    import ipaddress

    strangers = Strangers(per_address=1, total=3)
    strangers.exempt = (ipaddress.ip_network("10.0.0.0/24"),)
    assert [strangers.admit("10.0.0.2") for _ in range(4)] == [True, True, True, False]
    strangers.release("10.0.0.2")
    assert strangers.admit("192.0.2.1")


def test_one_owner_of_ipv6_addresses_counts_once():
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert network_of("a unix socket") == "a unix socket"


def test_counting_holds_with_many_threads():
    strangers = Strangers(per_address=1000, total=1000)

    def come_and_go() -> None:
        for _ in range(200):
            assert strangers.admit("192.0.2.1")
            strangers.release("192.0.2.1")

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(strangers.admit("192.0.2.1") for _ in range(1000))
    assert not strangers.admit("192.0.2.1")
