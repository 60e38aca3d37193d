"""Requests, retries and errors of the one place that speaks HTTP."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest
from stubserver import Stub, hang_up, reply

from shoal.client._http import Http, segment
from shoal.core.errors import (
    Busy,
    Forbidden,
    Internal,
    InvalidName,
    InvalidSpec,
    NotFound,
    Refused,
    ShoalError,
    StorageFailing,
    StorageFull,
    TimedOut,
    Unreachable,
)
from shoal.core.people import UserView, WorkspaceCreate

USER = {"id": "usr_1", "email": "a@b", "name": "", "is_admin": True, "created_at": "2025-01-01T00:00:00Z"}


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def http(stub: Stub, slept: list[float]) -> Iterator[Http]:
    made = Http(stub.url, "key-1", sleep=slept.append)
    yield made
    made.close()


def test_a_key_is_sent_as_a_bearer_token(stub: Stub, http: Http) -> None:
    stub.will(reply(body=USER))
    assert http.fetch(UserView, "/auth/me").email == "a@b"
    assert stub.asked[0].path == "/api/v1/auth/me"
    assert stub.asked[0].headers["Authorization"] == "Bearer key-1"


def test_parameters_without_a_value_are_left_out(stub: Stub, http: Http) -> None:
    stub.will(reply(body=[]))
    http.fetch(list, "/jobs", status=None, limit=5)
    assert stub.asked[0].path == "/api/v1/jobs?limit=5"


def test_a_request_the_server_was_too_busy_to_begin_is_sent_again_whatever_its_method(
    stub: Stub, http: Http, slept: list[float]
) -> None:
    stub.will(*[reply(503, Busy().to_wire())] * 8, reply(201, USER))
    assert http.call(UserView, "POST", "/workspaces", WorkspaceCreate(name="w")).email == "a@b"
    assert len(stub.asked) == 9 and len(slept) == 8 and min(slept) >= 0.5


@pytest.mark.parametrize("error", [StorageFull("Full.", hint="free some"), StorageFailing("Full.", hint="free some")])
def test_a_sick_disk_is_waited_for_as_long_as_the_server_asks_and_reported_once(
    stub: Stub, http: Http, slept: list[float], error: ShoalError
) -> None:
    said: list[str] = []
    http.on_wait = said.append
    stub.will(*[reply(error.http_status, error.to_wire(), {"Retry-After": "5"})] * 30, reply(body=USER))
    assert http.fetch(UserView, "/auth/me").id == "usr_1"
    assert len(slept) == 30 and min(slept) >= 3.75 and max(slept) <= 12.5 and sum(slept) < 400
    assert said == ["Full. (free some) Trying again for 10 min; Ctrl-C gives up."]


def test_the_patience_with_a_sick_disk_ends_with_its_error(stub: Stub, http: Http, slept: list[float]) -> None:
    http.patience_s = 30.0
    stub.will(reply(507, StorageFull("Full.").to_wire()))
    with pytest.raises(StorageFull, match="Full"):
        http.fetch(UserView, "/auth/me")
    assert sum(slept) == pytest.approx(30.0)


def test_the_patience_with_a_sick_disk_can_be_set(monkeypatch: pytest.MonkeyPatch, stub: Stub) -> None:
    monkeypatch.setenv("SHOAL_PATIENCE_S", "0")
    stub.will(reply(507, StorageFull().to_wire()))
    http = Http(stub.url)
    with pytest.raises(StorageFull):
        http.fetch(UserView, "/auth/me")
    http.close()
    assert len(stub.asked) == 1
    monkeypatch.setenv("SHOAL_PATIENCE_S", "long")
    with pytest.raises(InvalidSpec, match="SHOAL_PATIENCE_S: 'long'"):
        Http(stub.url)


@pytest.mark.parametrize("error", [StorageFull, StorageFailing, Unreachable])
def test_a_post_is_sent_again_only_if_the_server_says_that_nothing_was_changed(
    stub: Stub, http: Http, error: type[ShoalError]
) -> None:
    status = error.http_status
    stub.will(
        reply(status, error(details={"unchanged": True}).to_wire()), reply(status, error().to_wire()), reply(body={})
    )
    with pytest.raises(error):
        http.send("POST", "/workspaces", body=WorkspaceCreate(name="a"))
    assert len(stub.asked) == 2


def test_a_wire_error_becomes_its_exception(stub: Stub, http: Http) -> None:
    stub.will(reply(403, Forbidden("No.", hint="ask", details={"a": 1}).to_wire()))
    with pytest.raises(Forbidden, match=r"No\.") as caught:
        http.fetch(UserView, "/auth/me")
    assert (caught.value.hint, caught.value.details) == ("ask", {"a": 1})


@pytest.mark.parametrize("status", [404, 500, 200])
def test_something_else_than_shoal_is_said_to_be_so(stub: Stub, http: Http, status: int) -> None:
    stub.will(reply(status, b"<html>nginx</html>"))
    with pytest.raises(ShoalError) as caught:
        http.fetch(UserView, "/auth/me")
    assert isinstance(caught.value, Internal if status == 200 else Unreachable)
    assert "nginx" not in str(caught.value)


def test_a_redirect_is_not_followed_so_the_key_stays_home(stub: Stub, http: Http) -> None:
    stub.will(reply(307, b"", {"Location": f"{stub.url}/elsewhere"}))
    with pytest.raises(Unreachable, match="not followed"):
        http.fetch(UserView, "/auth/me")
    assert len(stub.asked) == 1


def test_a_get_is_repeated_when_the_connection_is_cut(stub: Stub, http: Http, slept: list[float]) -> None:
    stub.will(hang_up, hang_up, reply(body=USER))
    assert http.fetch(UserView, "/auth/me").id == "usr_1"
    assert slept == list(http.pauses_s[:2])


def test_a_get_is_repeated_while_the_server_is_busy(stub: Stub, http: Http) -> None:
    stub.will(reply(503, Unreachable().to_wire()), reply(body=USER))
    assert http.fetch(UserView, "/auth/me").id == "usr_1"


def test_a_post_that_may_have_been_heard_is_not_repeated(stub: Stub, http: Http, slept: list[float]) -> None:
    stub.will(hang_up, reply(body={}))
    with pytest.raises(Unreachable):
        http.send("POST", "/workspaces", body=WorkspaceCreate(name="a"))
    assert len(stub.asked) == 1
    assert slept == []


def test_a_post_declared_repeatable_is_repeated(stub: Stub, http: Http) -> None:
    stub.will(hang_up, reply(body={}))
    assert http.send("POST", "/stop", repeatable=True).status_code == 200
    assert len(stub.asked) == 2


def test_a_refused_connection_is_tried_again_even_for_a_post(slept: list[float]) -> None:
    http = Http("http://127.0.0.1:9", sleep=slept.append)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9 does not answer") as caught:
        http.send("POST", "/workspaces")
    http.close()
    assert slept == list(http.pauses_s)
    assert caught.value.hint == "Start it: shoal server start"


@pytest.mark.parametrize("error", [httpx.ReadTimeout(""), httpx.ConnectTimeout("")])
def test_a_server_that_is_only_slow_is_not_said_to_be_down(error: httpx.TimeoutException) -> None:
    http = Http("http://127.0.0.1:9")
    slow = http.unreachable(error)
    http.close()
    assert slow.message == "The server at http://127.0.0.1:9 is slow to answer."
    assert slow.hint == "It may be busy: shoal server status"


def test_a_call_that_takes_too_long_says_where_to_look(stub: Stub, http: Http) -> None:
    over = threading.Event()
    stub.will(lambda handler: over.wait(20))
    with pytest.raises(TimedOut, match=r"did not answer within 0 seconds") as caught:
        http.send("GET", "/health", timeout_s=0.05)
    over.set()
    assert caught.value.hint == "It may be busy: shoal server status"


def test_an_unknown_host_is_not_tried_again(slept: list[float]) -> None:
    http = Http("http://no-such-host.invalid", sleep=slept.append)
    with pytest.raises(Unreachable, match="name service"):
        http.send("GET", "/health")
    http.close()
    assert slept == []


def test_a_server_that_moved_is_found_where_it_is_now(stub: Stub, slept: list[float]) -> None:
    stub.will(reply(body=USER))
    http = Http("http://127.0.0.1:9", locate=lambda: stub.url, sleep=slept.append)
    assert http.fetch(UserView, "/auth/me").id == "usr_1"
    http.close()


def test_a_delete_whose_answer_was_lost_counts_as_done(stub: Stub, http: Http) -> None:
    stub.will(hang_up, reply(404, NotFound().to_wire()))
    http.send("DELETE", "/workspaces/a")
    stub.will(reply(404, NotFound().to_wire()))
    with pytest.raises(NotFound):
        http.send("DELETE", "/workspaces/a")


def test_other_refusals_are_never_repeated(stub: Stub, http: Http) -> None:
    stub.will(reply(409, Refused("Not now.").to_wire()))
    with pytest.raises(Refused):
        http.fetch(UserView, "/auth/me")
    assert len(stub.asked) == 1


@pytest.mark.parametrize(
    ("name", "path"), [("a/../b", "a%2F..%2Fb"), ("x@y.z", "x%40y.z"), ("a b?c#d", "a%20b%3Fc%23d")]
)
def test_a_name_stays_one_part_of_its_path(name: str, path: str) -> None:
    assert segment(name) == path


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_climb_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        segment(name)


def test_httpx_is_imported_without_its_command_line_and_click_is_left_as_it_was() -> None:
    code = (
        "import sys; from shoal.client._httpx import httpx; assert httpx.Client; "
        "assert 'click' not in sys.modules and 'rich' not in sys.modules; import click; assert click.command"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
