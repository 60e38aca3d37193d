"""The forward proxy: CONNECT both ways, refusals with their reason, and nothing left when it ends."""

import socket
import threading

import pytest

from shoal.core.proxy import ForwardProxy, connect_any
from shoal.testing.patience import patient


@pytest.fixture
def upstream():
    """A peer that reads until the other side has ended its half, and only then answers with all of it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            with end:
                end.settimeout(patient(10))
                data = b""
                while block := end.recv(65536):
                    data += block
                end.sendall(b"got " + data)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def proxy(request):
    made = []

    def start(connect=lambda host, port: connect_any([host], port), **options):
        listener = socket.create_server(("127.0.0.1", 0))
        made.append(ForwardProxy(listener, connect, name="test-proxy", **options))
        return listener.getsockname()[1]

    yield start
    for one in made:
        one.close()


def ask(port, request, *, more=b""):
    with socket.create_connection(("127.0.0.1", port), timeout=patient(10)) as end:
        end.sendall(request)
        answer = b""
        if more:
            while b"\r\n\r\n" not in answer:
                answer += end.recv(65536)
            end.sendall(more)
        if more:
            end.shutdown(socket.SHUT_WR)
        while block := end.recv(65536):
            answer += block
    return answer


@pytest.mark.parametrize("idle_s", [None, 30.0])
def test_a_tunnel_carries_both_ways_and_the_answer_after_one_half_has_ended(proxy, upstream, idle_s):
    port, body = proxy(idle_s=idle_s), b"x" * 2_000_000
    answer = ask(port, f"CONNECT 127.0.0.1:{upstream} HTTP/1.1\r\n\r\n".encode(), more=body)
    assert answer == b"HTTP/1.1 200 OK\r\n\r\ngot " + body


def test_a_plain_request_loses_its_proxy_headers_and_is_the_only_one_of_its_connection(proxy, upstream):
    request = f"POST http://127.0.0.1:{upstream}/a?b=c HTTP/1.1\r\nHost: h\r\nProxy-X: y\r\nConnection: keep-alive\r\n\r\nbody"
    with socket.create_connection(("127.0.0.1", proxy(plain_http=True)), timeout=patient(10)) as end:
        end.sendall(request.encode())
        end.shutdown(socket.SHUT_WR)
        assert end.recv(65536) == b"got POST /a?b=c HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nbody"


def test_what_is_not_served_is_refused_with_its_reason(proxy, upstream):
    def refuse(host, port):
        raise PermissionError(f"{host} is not a public address")

    def fail(host, port):
        raise OSError("nobody is there")

    connect = f"CONNECT 127.0.0.1:{upstream} HTTP/1.1\r\n\r\n".encode()
    assert b"403" in (said := ask(proxy(refuse), connect)) and b"is not a public address" in said
    assert b"502" in (said := ask(proxy(fail), connect)) and b"nobody is there" in said
    assert b"405" in ask(proxy(), b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n")
    assert b"405" in ask(proxy(), b"CONNECT example.org HTTP/1.1\r\n\r\n")
    locked = proxy(authorization=b"Basic abc")
    assert b"407" in ask(locked, connect)
    assert b"407" in ask(locked, connect[:-2] + b"Proxy-Authorization: Basic abd\r\n\r\n")
    assert b"200 OK" in ask(locked, connect[:-2] + b"proxy-authorization: Basic abc\r\n\r\n", more=b"x")


def test_a_silent_connection_ends_after_its_limit(proxy, upstream):
    with socket.create_connection(("127.0.0.1", proxy(idle_s=0.2)), timeout=patient(10)) as end:
        end.sendall(f"CONNECT 127.0.0.1:{upstream} HTTP/1.1\r\n\r\n".encode())
        answer = b""
        while block := end.recv(65536):
            answer += block
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n\r\n")
