"""Every answer a server can give is understood, and none can hang or fool the agent."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.agent.link import Link, pause_after
from shoal.core.errors import Fenced, OutOfSequence, Unreachable

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}'


class Peer:
    """Gives the next answer to each request; None closes the connection without one."""

    def __init__(self, *answers: bytes | None):
        self.answers, self.requests = list(answers), list[bytes]()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while self.answers:
            try:
                conn, _ = self._socket.accept()
            except OSError:
                return
            with conn:
                while self.answers and (request := _request(conn)):
                    self.requests.append(request)
                    answer = self.answers.pop(0)
                    if answer is None:
                        break
                    conn.sendall(answer)
                    if b"close" in answer.partition(b"\r\n\r\n")[0] or (
                        b"Content-Length" not in answer and b"chunked" not in answer
                    ):
                        break

    def close(self) -> None:
        self._socket.close()


def _request(conn: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = conn.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += conn.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def make(*answers: bytes | None) -> Peer:
        made.append(Peer(*answers))
        return made[-1]

    yield make
    for one in made:
        one.close()


def refusal(status: int, code: str, **details: object) -> bytes:
    body = json.dumps({"error": {"code": code, "message": "no", "hint": None, "details": details}}).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def test_a_connection_is_kept_and_carries_the_token(peer: Callable[..., Peer]) -> None:
    server = peer(OK, OK)
    link = Link(server.url, "tok")
    assert link.post("/beat", {"state": "running"}) == link.post("/beat", {}) == {"a": 1}
    assert server.requests[0].startswith(b"POST /api/v1/agent/beat HTTP/1.1\r\n")
    assert b"X-Shoal-Agent: tok\r\n" in server.requests[0] and server.requests[0].endswith(b'{"state": "running"}')
    link.close()


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n5;x=y\r\n": 1}\r\n0\r\nTrailer: t\r\n\r\n',
        b'HTTP/1.1 200 OK\r\n\r\n{"a": 1}',
        b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\n{"a": 1}',
    ],
)
def test_all_ways_to_end_a_body_are_understood(peer: Callable[..., Peer], answer: bytes) -> None:
    link = Link(peer(answer, OK).url, "t")
    assert link.post("/beat", {}) == {"a": 1}
    assert link.post("/beat", {}) == {"a": 1}
    link.close()


def test_a_kept_connection_that_was_closed_meanwhile_is_opened_again(peer: Callable[..., Peer]) -> None:
    server = peer(OK, None, OK)
    link = Link(server.url, "t")
    link.post("/beat", {})
    assert link.post("/beat", {}) == {"a": 1}
    link.close()


@pytest.mark.parametrize(
    "answer",
    [None, b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: close\r\n\r\nshort"],
)
def test_no_proper_answer_is_an_outage(peer: Callable[..., Peer], answer: bytes | None) -> None:
    with pytest.raises(Unreachable):
        Link(peer(answer).url, "t").post("/beat", {})


def test_nobody_there_is_an_outage() -> None:
    with pytest.raises(Unreachable):
        Link("http://127.0.0.1:9", "t").post("/beat", {})


def test_what_the_server_refuses_is_its_own_error(peer: Callable[..., Peer]) -> None:
    with pytest.raises(Fenced):
        Link(peer(refusal(409, "fenced")).url, "t").post("/beat", {})
    with pytest.raises(OutOfSequence) as caught:
        Link(peer(refusal(409, "out_of_sequence", next_seq=7)).url, "t").post_bytes("/segments/log", b"x")
    assert caught.value.details == {"next_seq": 7}


@pytest.mark.parametrize(
    "answer",
    [refusal(503, "internal"), refusal(429, "too_many_tries"), b"HTTP/1.1 403 No\r\nContent-Length: 4\r\n\r\nblob"],
)
def test_an_overloaded_server_or_a_proxys_page_is_an_outage(peer: Callable[..., Peer], answer: bytes) -> None:
    with pytest.raises(Unreachable):
        Link(peer(answer).url, "t").post("/beat", {})


def test_a_server_that_moved_is_found_by_its_file(peer: Callable[..., Peer], tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    link = Link("http://127.0.0.1:9", "t", str(file))
    with pytest.raises(Unreachable):
        link.post("/beat", {})
    file.write_text(json.dumps({"url": peer(OK).url}))
    assert link.post("/beat", {}) == {"a": 1}
    link.close()


def test_a_server_of_another_instance_is_not_spoken_to(peer: Callable[..., Peer], tmp_path: Path) -> None:
    """The copy of a data directory, or a stranger, may have taken the port; ours comes back and says where."""
    file, ours = tmp_path / "server.json", peer(OK)
    link = Link(peer(*[refusal(421, "wrong_instance")] * 2).url, "t", str(file), instance="inst_1")
    with pytest.raises(Unreachable):
        link.post("/beat", {})
    file.write_text(json.dumps({"url": ours.url, "instance": "inst_2"}))
    link.close()
    with pytest.raises(Unreachable):
        link.post("/beat", {})
    assert not ours.requests
    file.write_text(json.dumps({"url": ours.url, "instance": "inst_1"}))
    link.close()
    assert link.post("/beat", {}) == {"a": 1}
    assert b"X-Shoal-Instance: inst_1\r\n" in ours.requests[0]
    link.close()


def test_the_address_others_reach_us_by_is_the_one_we_reach_the_server_by(peer: Callable[..., Peer]) -> None:
    link = Link(peer(OK).url, "t")
    assert link.local_address() == "127.0.0.1"
    link.close()


def test_a_server_that_says_when_to_come_back_is_believed(peer: Callable[..., Peer]) -> None:
    answer = b"HTTP/1.1 507 Full\r\nRetry-After: %s\r\nContent-Length: 0\r\n\r\n"
    for after, pause_s in ((b"5", 5.0), (b"86400", 10.0), (b"soon", 0.2)):
        with pytest.raises(Unreachable) as caught:
            Link(peer(answer % after).url, "t").post("/beat", {})
        assert pause_after(caught.value, 0.2) == pause_s
    assert pause_after(OSError(), 0.2) == 0.2
