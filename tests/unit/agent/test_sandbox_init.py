"""The way out of a sandbox, at its inner end: many connections, none of which waits for another."""

import socket
import threading
from contextlib import ExitStack, suppress

import pytest

from shoal.agent.sandbox import init


@pytest.fixture
def dial(tmp_path):
    """Opens a connection through it: (the end inside, the end outside)."""
    with ExitStack() as stack:
        outside = stack.enter_context(socket.socket(socket.AF_UNIX))
        outside.bind(str(tmp_path / "out.sock"))
        outside.listen()
        outside.settimeout(5)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def passes_on():
            with suppress(OSError):  # when nobody is listened to any more
                init._pass_on({listener: str(tmp_path / "out.sock")})

        thread = threading.Thread(target=passes_on)
        thread.start()
        stack.callback(thread.join)
        stack.callback(listener.shutdown, socket.SHUT_RDWR)

        def connect():
            ends = socket.create_connection(listener.getsockname(), timeout=5), outside.accept()[0]
            for end in ends:
                end.settimeout(5)
                stack.callback(end.close)
            return ends

        yield connect


def test_one_that_takes_nothing_holds_up_nobody_else(dial):
    stalled, its_server = dial()
    its_server.settimeout(0.3)
    with pytest.raises(TimeoutError):
        its_server.sendall(bytes(64 << 20))
    client, server = dial()
    client.sendall(b"ask")
    assert server.recv(10) == b"ask"
    server.sendall(b"answer")
    assert client.recv(10) == b"answer"
    stalled.sendall(b"goes on too")
    assert its_server.recv(20) == b"goes on too"


def test_who_has_said_all_still_hears_the_answer(dial):
    client, server = dial()
    client.sendall(b"all of it")
    client.shutdown(socket.SHUT_WR)
    assert server.makefile("rb").read() == b"all of it"
    answer, heard = bytes(range(256)) * 20_000, []
    listens = threading.Thread(target=lambda: heard.append(client.makefile("rb").read()))
    listens.start()  # it is more than fits on the way
    server.sendall(answer)
    server.close()
    listens.join()
    assert heard == [answer]
