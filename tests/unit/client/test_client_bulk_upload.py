"""Bulk bytes over plain HTTP: connections are kept, broken ones replaced, and errors are the ones the client knows."""

from __future__ import annotations

import socket

import pytest
from stubserver import Stub, hang_up, reply

from shoal.client._bulk_upload import ConnectionPool
from shoal.client._http import Http
from shoal.core.datasets import FetchRequest
from shoal.core.errors import NotFound, StorageFull, TimedOut, Unreachable


@pytest.fixture
def http(stub: Stub):
    made = Http(stub.url, "key-1", sleep=lambda _: None)
    yield made
    made.close()


def sent(http, **options) -> bytes:
    return http.send("POST", "/x", body=[b"y"], **options).content


def test_pieces_arrive_as_one_body(stub, http):
    stub.will(reply(body={"stored": 2}))
    assert http.send("POST", "/x", body=[b"one", b"two"]).json() == {"stored": 2}
    (asked,) = stub.asked
    assert (asked.body, asked.headers["Authorization"], asked.headers["Content-Length"]) == (
        b"onetwo",
        "Bearer key-1",
        "6",
    )
    assert "Accept-Encoding" not in asked.headers, "nobody here unpacks what a proxy might pack"


def test_a_connection_is_used_again(stub, http):
    ports = []

    def answer(handler):
        ports.append(handler.client_address[1])
        reply(body=b"x" * 2_000_000)(handler)

    stub.will(answer)
    for _ in range(3):
        assert sent(http) == b"x" * 2_000_000
    assert len(set(ports)) == 1


def test_a_connection_that_was_closed_meanwhile_is_replaced(stub, http):
    def last(handler):
        reply(body=b"ok")(handler)
        handler.close_connection = True  # without saying so

    stub.will(last, reply(body=b"ok"))
    assert (sent(http), sent(http)) == (b"ok", b"ok")


def test_refusals_are_the_servers_own(stub, http):
    stub.will(reply(404, NotFound("no such chunk").to_wire()), reply(507, StorageFull().to_wire()))
    with pytest.raises(NotFound, match="no such chunk"):
        sent(http)
    with pytest.raises(StorageFull):
        sent(http)


def test_a_connection_that_breaks_is_unreachable_and_sending_is_tried_again(stub, http):
    stub.will(hang_up)
    with pytest.raises(Unreachable):
        sent(http)
    stub.will(hang_up, hang_up, reply(body={"stored": 1}))
    assert http.send("POST", "/x", body=[b"y"], repeatable=True).json() == {"stored": 1}


def test_a_server_that_is_not_there_is_unreachable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        http = Http(f"http://127.0.0.1:{taken.getsockname()[1]}", sleep=lambda _: None)
        with pytest.raises(Unreachable, match="does not answer"):
            http.send("POST", "/x", body=[b"y"])
        http.close()


def test_silence_is_not_waited_for_for_ever(stub, http):
    stub.will(lambda handler: stub.release.wait(10))
    with pytest.raises(TimedOut):
        sent(http, timeout_s=0.05)
    stub.release.set()


@pytest.mark.parametrize(
    ("url", "proxy", "is_taken"),
    [
        ("http://127.0.0.1:1", "http://proxy:1", True),
        ("http://example.org", None, True),
        ("http://example.org", "http://proxy:1", False),
        ("https://example.org", None, False),
    ],
)
def test_tls_and_proxies_are_left_to_httpx(monkeypatch, url, proxy, is_taken):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
    assert ConnectionPool.supports(url) is is_taken


def test_without_it_everything_goes_through_httpx(stub, http, monkeypatch):
    monkeypatch.setattr(ConnectionPool, "supports", staticmethod(lambda url: False))
    stub.will(reply(body=b"through httpx"), reply(body={"stored": 1}), reply(404, NotFound("no").to_wire()))
    assert sent(http) == b"through httpx"
    assert http.send("POST", "/x", body=[b"a", b"b"]).json() == {"stored": 1}
    with pytest.raises(NotFound):
        sent(http)


def test_an_answer_is_read_into_memory_of_ones_own(stub, http):
    stub.will(reply(body=b"z" * 100_000))
    room = memoryview(bytearray(100_000))
    with http.receive_bulk("/x", FetchRequest(hashes=["0" * 64]), silence_s=5) as answer:
        have = 0
        while done := answer.readinto(room[have:]):
            have += done
    assert bytes(room) == b"z" * 100_000


def test_a_refusal_of_bulk_is_the_servers_own(stub, http):
    stub.will(reply(404, NotFound("no such chunk").to_wire()))
    with (
        pytest.raises(NotFound, match="no such chunk"),
        http.receive_bulk("/x", FetchRequest(hashes=["0" * 64]), silence_s=5),
    ):
        pass


def test_more_pieces_than_one_call_takes_arrive_in_order(stub, http):
    stub.will(reply(body={"stored": 1}))
    pieces = [b"%d," % n for n in range(5_000)] + [b"", b"end" * 1_000_000]
    http.send("POST", "/x", body=pieces)
    assert stub.asked[0].body == b"".join(pieces)
