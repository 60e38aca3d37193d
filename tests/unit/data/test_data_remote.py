import pytest

from shoal.core.errors import Corrupt, InvalidSpec, NotFound, TimedOut, Unreachable
from shoal.data import remote as module
from shoal.data.remote import Access, Remote
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames


def key_of(http):
    return http._client.headers.get("Authorization")


class TestAccess:
    def test_a_job_uses_its_own_token(self, monkeypatch):
        monkeypatch.setenv("SHOAL_URL", "http://server:8080")
        monkeypatch.setenv("SHOAL_JOB_TOKEN", "token")
        monkeypatch.setenv("SHOAL_WORKSPACE", "ws_1")
        http, workspace = Access().open()
        assert (http.url, key_of(http), workspace) == ("http://server:8080", "Bearer token", "ws_1")

    def test_elsewhere_it_goes_by_what_the_cli_goes_by(self, monkeypatch):
        monkeypatch.setenv("SHOAL_URL", "http://server:8080")
        monkeypatch.setenv("SHOAL_API_KEY", "key")
        monkeypatch.delenv("SHOAL_WORKSPACE", raising=False)
        http, workspace = Access().open()
        assert (http.url, key_of(http), workspace) == ("http://server:8080", "Bearer key", "default")

    def test_what_is_given_wins(self, monkeypatch):
        monkeypatch.setenv("SHOAL_URL", "http://server:8080")
        monkeypatch.setenv("SHOAL_JOB_TOKEN", "token")
        http, workspace = Access("https://other", "mine", "vision").open()
        assert (http.url, key_of(http), workspace) == ("https://other", "Bearer mine", "vision")

    def test_a_jobs_token_goes_to_no_other_server(self, monkeypatch):
        monkeypatch.setenv("SHOAL_URL", "http://server:8080")
        monkeypatch.setenv("SHOAL_JOB_TOKEN", "token")
        http, _ = Access("http://other:1").open()
        assert key_of(http) is None

    def test_a_malformed_address_is_refused(self, monkeypatch):
        with pytest.raises(InvalidSpec):
            Access("server:8080").open()

    def test_without_any_server_none_is_started_where_that_is_forbidden(self, monkeypatch):
        monkeypatch.setenv("SHOAL_NO_AUTOSTART", "1")
        with pytest.raises(Unreachable):
            Access().open()


class Answers:
    """Replacement of the connection: gives these answers in turn, the last one forever; None is the real answer."""

    url = "http://server"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = []

    def send(self, method, path, *, body=None, repeatable=None, timeout_s):
        self.calls.append((method, timeout_s))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        data = b"".join(encode_frames([(NAME, DATA)])) if method == "POST" else DATA
        return type("Reply", (), {"content": data if answer is None else answer})


DATA = b"some bytes"
NAME = chunk_hash(DATA)


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only by sleeping."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def remote(answers):
    made = Remote(Access())
    made._opened = (answers, "default")
    return made


class TestPatience:
    def test_many_chunks_come_in_one_answer(self, clock):
        answers = Answers(None)
        assert remote(answers).fetch([NAME]) == {NAME: DATA}
        assert len(answers.calls) == 1

    @pytest.mark.parametrize("fault", [Unreachable("503"), TimedOut("slow"), b"cut off"])
    def test_what_fails_together_is_asked_for_one_by_one(self, clock, fault):
        answers = Answers(fault, None)
        assert remote(answers).fetch([NAME]) == {NAME: DATA}
        assert [method for method, _ in answers.calls] == ["POST", "GET"]

    def test_it_waits_for_a_server_that_comes_back(self, clock):
        answers = Answers(*[Unreachable("gone")] * 40, None)
        assert remote(answers).fetch([NAME]) == {NAME: DATA}
        assert 60 < clock[0] < 300

    def test_it_gives_up_in_the_end_and_says_how_long_it_waited(self, clock):
        with pytest.raises(Unreachable, match="No data from http://server for 600 seconds: gone"):
            remote(Answers(Unreachable("gone"))).fetch([NAME])
        assert 600 <= clock[0] < 610

    def test_at_the_start_it_gives_up_sooner(self, clock):
        with pytest.raises(Unreachable, match="30 seconds"):
            remote(Answers(Unreachable("gone"))).manifest("set")

    def test_waiting_is_told_now_and_then(self, clock, caplog):
        with pytest.raises(Unreachable):
            remote(Answers(Unreachable("gone"))).fetch([NAME])
        assert 10 <= caplog.text.count("Waiting for data") <= 21

    def test_bytes_that_stay_wrong_are_corrupt(self, clock):
        with pytest.raises(Corrupt):
            remote(Answers(b"wrong")).fetch([NAME])
        assert clock[0] < 5

    def test_what_is_not_there_is_no_reason_to_wait(self, clock):
        with pytest.raises(NotFound):
            remote(Answers(NotFound("no such chunk"))).fetch([NAME])
        assert clock[0] == 0
