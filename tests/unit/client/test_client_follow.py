"""Following a job across cut connections: every line once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stubserver import Answer, Stub, hang_up, reply, stream

from shoal.client import Client
from shoal.client._sse import ServerEvent, SseParser
from shoal.client.follow import Back, Changed, Follower, Lines, Lost
from shoal.core.errors import NotFound, Unreachable
from shoal.core.jobs import JobSummary, LogLine, LogPage
from shoal.core.schema import utcnow
from shoal.core.states import JobState

TEXTS = [f"line {n} \u2028 \x85 \U0001f41f" for n in range(40)]


@pytest.fixture
def client(stub: Stub) -> Iterator[Client]:
    with Client(stub.url, "key") as made:
        made._http.sleep = lambda _: None
        yield made


def event(kind: str, data: str, cursor: int) -> bytes:
    return f"event: {kind}\nid: {cursor}\ndata: {data}\n\n".encode()


def log(*numbers: int) -> bytes:
    lines = [LogLine(at=0.0, attempt=1, node=0, rank=0, text=TEXTS[n]) for n in numbers]
    cursor = numbers[-1] + 1
    return event("log", LogPage(lines=lines, cursor=cursor, more=False).model_dump_json(), cursor)


def job(status: JobState, cursor: int = 0) -> bytes:
    view = JobSummary(
        id="job_1", name="hello", status=status, nodes=1, accels=1, attempts=1, progress=None, created_at=utcnow(),
        started_at=None, ended_at=None, exit_code=None, reason=None,
    )  # fmt: skip
    return event("job", view.model_dump_json(), cursor)


END = event("end", "{}", 0)


def texts(events: list[object]) -> list[str]:
    return [line.text for e in events if isinstance(e, Lines) for line in e.lines]


def test_lines_and_changes_come_in_order_and_end_ends_it(stub: Stub, client: Client) -> None:
    stub.will(
        stream(job(JobState.RUNNING), log(0, 1), b"event: ping\ndata: {}\n\n", log(2), job(JobState.SUCCEEDED), END)
    )
    events = list(client.jobs.follow("hello", rank=1))
    assert texts(events) == TEXTS[:3]
    assert [e.job.status for e in events if isinstance(e, Changed)] == ["running", "succeeded"]
    assert stub.asked[0].path == "/api/v1/workspaces/default/jobs/hello/follow?rank=1&after=0"


def test_after_a_cut_it_goes_on_behind_the_last_whole_event(stub: Stub, client: Client) -> None:
    whole = log(2, 3)
    stub.will(stream(log(0, 1), whole[: len(whole) // 2]), stream(whole, END))
    events = list(client.jobs.follow("hello"))
    assert texts(events) == TEXTS[:4]
    assert stub.asked[1].path.endswith("after=2")
    assert [type(e) for e in events if isinstance(e, Lost | Back)] == [Lost, Back]


def test_lines_sent_again_are_not_shown_again(stub: Stub, client: Client) -> None:
    stub.will(stream(log(0, 1), log(0, 1), log(2), END))
    assert texts(list(client.jobs.follow("hello"))) == TEXTS[:3]


def test_a_server_that_is_away_for_a_while_is_waited_for(stub: Stub, client: Client) -> None:
    busy = reply(503, Unreachable().to_wire())
    stub.will(stream(log(0)), hang_up, busy, hang_up, stream(log(1), END))
    events = list(client.jobs.follow("hello"))
    assert texts(events) == TEXTS[:2]
    assert len([e for e in events if isinstance(e, Lost)]) == 1, "one warning per outage"


def test_patience_ends(stub: Stub, client: Client) -> None:
    stub.will(hang_up)
    now = iter(range(0, 1000, 10))
    follower = Follower(client._http, "/x", {}, patience_s=35, clock=lambda: float(next(now)))
    with pytest.raises(Unreachable):
        list(follower)


def test_a_job_that_is_gone_is_an_error_at_once(stub: Stub, client: Client) -> None:
    stub.will(stream(log(0)), reply(404, NotFound("There is no job 'hello'.").to_wire()))
    with pytest.raises(NotFound):
        list(client.jobs.follow("hello"))


def test_a_server_that_comes_back_on_another_port_is_found(stub: Stub) -> None:
    stub.will(stream(log(0), END))
    with Client("http://127.0.0.1:9", "key", locate=lambda: stub.url) as client:
        client._http.sleep = lambda _: None
        assert texts(list(client.jobs.follow("hello"))) == TEXTS[:1]


@given(cuts=st.lists(st.integers(0, 5000), max_size=12), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_no_line_is_lost_or_doubled_wherever_the_connection_is_cut(cuts: list[int], sizes: list[int]) -> None:
    """The parser and the cursor together, against a server that serves from `after` and is cut at any byte."""
    total = sum(sizes)
    pages, start = {}, 0
    for size in sizes:
        pages[start] = log(*range(start, start + size))
        start += size

    class Cut:
        url = "http://stub"
        sleep = staticmethod(lambda _: None)
        relocate = staticmethod(lambda: False)
        unreachable = staticmethod(lambda error: Unreachable(str(error)))

        def stream(self, path: str, params: dict[str, int], *, silence_s: float) -> object:
            body = b"".join(page for first, page in pages.items() if first >= params["after"]) + END
            at = cuts.pop(0) if cuts else len(body)

            class Opened:
                def __enter__(self) -> Iterator[bytes]:
                    return iter([body[:at][:7], body[:at][7:]])

                def __exit__(self, *_: object) -> None: ...

            return Opened()

    events = list(Follower(Cut(), "/x", {}))  # type: ignore[arg-type]
    assert texts(events) == TEXTS[:total]


@given(st.data())
def test_events_are_the_same_however_the_bytes_are_cut(data: st.DataObject) -> None:
    body = (
        b": hello\n\n" + event("log", '{"a":"\u2028"}', 7) + b"event:x\r\ndata:1\r\ndata: 2\r\n\r\n" + b"event: half\n"
    )
    parser, events = SseParser(), []
    while body:
        at = data.draw(st.integers(1, len(body)))
        events += parser.feed(body[:at])
        body = body[at:]
    assert events == [ServerEvent("log", '{"a":"\u2028"}'.encode(), "7"), ServerEvent("x", b"1\n2", "")]


def test_silence_counts_as_lost(stub: Stub, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(handler: BaseHTTPRequestHandler) -> None:
        stream(log(0))(handler)
        stub.release.wait(20)

    answers: list[Answer] = [silent, stream(log(1), END)]
    monkeypatch.setattr("shoal.client.follow.SILENCE_S", 0.1)
    stub.will(*answers)
    assert texts(list(client.jobs.follow("hello"))) == TEXTS[:2]
