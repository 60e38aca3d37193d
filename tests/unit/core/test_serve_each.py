"""Connections, each served in a thread: none of them ends the listener, and those above the limit are closed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from shoal.core.background_loops import serve_each


class Listener:
    def __init__(self, serve: Callable[[socket.socket], object], at_once: int):
        self._closed, self._listener = threading.Event(), socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(
            target=serve_each, args=(self._listener, serve, self._closed), kwargs={"name": "served", "at_once": at_once}
        )
        self._thread.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(self._listener.getsockname(), timeout=60)

    def close(self) -> None:
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._listener.close()


@pytest.fixture
def listen() -> Iterator[Callable[..., Listener]]:
    made: list[Listener] = []

    def make(serve: Callable[[socket.socket], object], *, at_once: int = 8) -> Listener:
        made.append(Listener(serve, at_once))
        return made[-1]

    yield make
    for listener in made:
        listener.close()


def test_a_connection_that_fails_is_closed_and_the_next_is_served(listen: Callable[..., Listener]) -> None:
    def serve(client: socket.socket) -> None:
        if client.recv(1) == b"x":
            raise OSError("no")
        client.sendall(b"served")

    listener = listen(serve, at_once=1)
    with listener.connect() as bad:
        bad.sendall(b"x")
        assert bad.recv(1) == b""
    answer = b""
    while not answer:  # the place of the failed one is given back right after it was closed
        with listener.connect() as good, suppress(ConnectionError):  # until then, a connection is closed unread
            good.sendall(b"y")
            answer = good.recv(6)
    assert answer == b"served"


def test_a_connection_above_the_limit_is_closed_at_once(listen: Callable[..., Listener]) -> None:
    begun, release = threading.Event(), threading.Event()

    def serve(client: socket.socket) -> None:
        begun.set()
        release.wait(60)
        client.sendall(b"served")

    listener = listen(serve, at_once=1)
    with listener.connect() as first:
        assert begun.wait(60)
        with listener.connect() as second:
            assert second.recv(1) == b""
        release.set()
        assert first.recv(6) == b"served"
