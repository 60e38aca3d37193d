"""Orders reach the node, records reach the server, and refusals end neither in a loop nor in silence."""

from __future__ import annotations

import json
import select
import threading
from pathlib import Path
from typing import Any

import pytest
import zstandard

from shoal.agent.node.heartbeat import Beats, NodeControl
from shoal.agent.outbox.outbox import Outbox
from shoal.agent.outbox.shipping import Shipper
from shoal.core.errors import Fenced, InvalidSpec, NotSignedIn, OutOfSequence, Refused, ShoalError, Unreachable
from shoal.testing.patience import wait_until


class Server:
    """Stands in for a Link: answers from a list, then keeps to the last answer."""

    def __init__(self, *answers: dict[str, Any] | ShoalError):
        self.answers, self.calls = list(answers), list[tuple[str, Any]]()
        self.records: list[dict[str, Any]] = []
        self.called = threading.Event()

    def _answer(self) -> dict[str, Any]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.called.set()
        if isinstance(answer, ShoalError):
            raise answer
        return answer

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((path, body))
        return self._answer()

    def post_bytes(self, path: str, body: bytes) -> dict[str, Any]:
        self.calls.append((path, body))
        answer = self._answer()
        if "keep" in answer:
            self.records += [json.loads(x) for x in zstandard.ZstdDecompressor().decompress(body).split(b"\n")]
            return {"next_seq": self.records[-1]["s"] + 1}
        return answer


def beats(server: Server, control: NodeControl) -> Beats:
    made = Beats(server, control, lambda: {"step": 1})  # type: ignore[arg-type]
    made.start()
    return made


def test_a_beat_comes_when_the_server_wants_it() -> None:
    server = Server({"beat_in_s": 0.01, "grace_s": 3.0}, {"stop": True, "grace_s": 3.0})
    control = NodeControl()
    made = beats(server, control)
    made.update(state="running")
    assert select.select([control.signals.wake_r], [], [], 0.8)[0] and control.stop
    made.stop()
    made.join(5)


def test_an_order_wakes_whoever_waits_for_it() -> None:
    control = NodeControl()
    made = beats(Server({"stop": True, "grace_s": 3.0}), control)
    made.update(state="running")
    assert select.select([control.signals.wake_r], [], [], 5)[0] and control.stop_grace_s == 3.0 and not control.fenced
    made.stop()
    made.join(5)


def test_a_change_is_told_at_once_and_known_to_be_delivered() -> None:
    server = Server({})
    made = beats(server, NodeControl())
    version = made.update(state="exited", exit_code=0)
    assert made.delivered(version, 5)
    assert server.calls[-1] == ("/beat", {"state": "exited", "exit_code": 0, "progress": {"step": 1}})
    made.stop()
    made.join(5)


def test_a_beat_says_for_how_long_the_machine_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop of this process and a suspend of the machine both count: the clock is that since boot."""
    now = [100.0]
    monkeypatch.setattr("shoal.agent.node.heartbeat._TICK_S", 0.002)
    server = Server({"beat_in_s": 0.005})
    sent = Beats(server, NodeControl(), lambda: None, clock=lambda: now[0])  # type: ignore[arg-type]
    sent.start()
    wait_until(lambda: server.calls and sent._lag._state[0] is not None, "a beat and a tick")
    assert "stalled_s" not in server.calls[0][1]
    now[0] += 31.0
    wait_until(lambda: server.calls[-1][1].get("stalled_s") == 30.0, "the beat says so")
    sent.stop()
    sent.join()


def test_a_beat_refused_as_fenced_is_an_order() -> None:
    control = NodeControl()
    made = beats(Server(Fenced()), control)
    made.update(state="running")
    assert select.select([control.signals.wake_r], [], [], 5)[0] and control.fenced
    made.stop()
    made.join(5)


def spool(tmp_path: Path, count: int) -> Outbox:
    made = Outbox(tmp_path)
    made.append([json.dumps({"t": 0, "m": str(n)}).encode() for n in range(count)])
    return made


def test_records_are_shipped_again_after_an_outage_and_from_where_the_server_asks(tmp_path: Path) -> None:
    server = Server(Unreachable(), OutOfSequence(details={"next_seq": 2}), {"keep": 1})
    shipper = Shipper(server, {"log": spool(tmp_path, 5)})  # type: ignore[arg-type]
    shipper.start()
    assert shipper.drained(10)
    assert [r["s"] for r in server.records] == [2, 3, 4]


def test_a_stream_the_server_has_fenced_is_given_up(tmp_path: Path) -> None:
    server = Server(Fenced())
    shipper = Shipper(server, {"log": spool(tmp_path, 5)})  # type: ignore[arg-type]
    shipper.start()
    assert shipper.drained(10) and len(server.calls) == 1


def test_one_refusal_of_a_segment_is_not_the_last_word(tmp_path: Path) -> None:
    server = Server(InvalidSpec(), {"keep": 1})
    shipper = Shipper(server, {"log": spool(tmp_path, 3)})  # type: ignore[arg-type]
    shipper.start()
    assert shipper.drained(10) and [r["s"] for r in server.records] == [0, 1, 2]


def test_no_number_of_refusals_ends_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.agent.outbox.shipping._WAITS_S", (0.001, 0.01))
    said: list[str] = []
    refusals = [Refused("The database cannot be written: disk I/O error.")] * 25
    server = Server(*refusals, {"keep": 1})
    shipper = Shipper(server, {"log": spool(tmp_path, 3)}, said.append)  # type: ignore[arg-type]
    shipper.start()
    assert shipper.drained(60) and [r["s"] for r in server.records] == [0, 1, 2]
    assert len(said) == 1 and "disk I/O error" in said[0]


def test_a_stream_ends_when_the_server_has_long_forgotten_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.agent.outbox.shipping._WAITS_S", (0.001, 0.01))
    monkeypatch.setattr("shoal.agent.outbox.shipping._FORGOTTEN_S", 0.02)
    server = Server(NotSignedIn())
    shipper = Shipper(server, {"log": spool(tmp_path, 3)})  # type: ignore[arg-type]
    shipper.start()
    assert shipper.drained(60) and len(server.calls) > 1


def test_a_stream_of_a_forgotten_job_goes_on_when_the_server_knows_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.agent.outbox.shipping._WAITS_S", (0.001, 0.01))
    monkeypatch.setattr("shoal.agent.outbox.shipping._FORGOTTEN_S", 0.02)
    monkeypatch.setattr("shoal.agent.outbox.shipping._FORGOTTEN_RETRY_S", 0.05)
    server = Server(NotSignedIn())
    shipper = Shipper(server, {"log": spool(tmp_path, 3)})  # type: ignore[arg-type]
    shipper.start()
    assert shipper.drained(60) and server.records == []  # nobody waits for it
    server.answers.append({"keep": 1})
    wait_until(lambda: [r["s"] for r in server.records] == [0, 1, 2], "its records arrive")


def test_one_record_the_server_cannot_take_costs_none_of_the_others(tmp_path: Path) -> None:
    """Batches are halved until the bad one stands alone; a notice takes its place and its number."""
    server, said = Picky("7"), list[str]()
    shipper = Shipper(server, {"log": spool(tmp_path, 20)}, said.append)  # type: ignore[arg-type]
    shipper.start()
    assert shipper.drained(60)
    assert [r["s"] for r in server.records] == list(range(20))
    assert [r["m"] for r in server.records if "dropped" not in r] == [str(n) for n in range(20) if n != 7]
    assert server.records[7]["dropped"] == 1
    assert len(said) == 1 and "A segment's records are not JSON lines" in said[0]


def test_a_refused_stream_does_not_hold_up_the_others(tmp_path: Path) -> None:
    server = Picky("0", error=Refused("not now"))
    spools = {"metric": spool(tmp_path / "metric", 1), "log": Outbox(tmp_path / "log")}
    shipper = Shipper(server, spools)  # type: ignore[arg-type]
    shipper.start()
    spools["log"].append([b'{"t":1,"m":"hello"}'])
    assert server.kept.wait(60)


def test_shipping_goes_on_after_the_disk_could_not_be_read(tmp_path: Path) -> None:
    class Sick(Outbox):
        failures = 3

        def read(self, *args: Any) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError(5, "Input/output error")
            return super().read(*args)

    sick, server = Sick(tmp_path), Server({"keep": 1})
    sick.append([b'{"t":0,"m":"0"}'])
    shipper = Shipper(server, {"log": sick})  # type: ignore[arg-type]
    shipper.start()
    assert shipper.drained(60) and len(server.records) == 1


def test_beats_go_on_when_progress_cannot_be_told_or_an_order_not_obeyed() -> None:
    def broken(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    control = NodeControl()
    control.on_command = broken
    server = Server({"commands": [{}]}, {"stop": True})
    made = Beats(server, control, broken)  # type: ignore[arg-type]
    made.start()
    made.update(state="running")
    assert select.select([control.signals.wake_r], [], [], 60)[0] and control.stop
    assert server.calls[-1][1]["progress"] is None
    made.stop()
    made.join(5)


class Picky:
    """Takes everything but batches that hold one text."""

    def __init__(self, bad: str, error: ShoalError | None = None):
        self.bad, self.records, self.kept = bad, list[dict[str, Any]](), threading.Event()
        self.error = error or InvalidSpec("A segment's records are not JSON lines with a time.")

    def post_bytes(self, path: str, body: bytes) -> dict[str, Any]:
        records = [json.loads(x) for x in zstandard.ZstdDecompressor().decompress(body).split(b"\n")]
        if any(r.get("m") == self.bad for r in records):
            raise self.error
        self.records += records
        self.kept.set()
        return {"next_seq": records[-1]["s"] + 1}


def test_a_flood_in_one_stream_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Each round brings a batch of every stream, so a line of the log waits for one batch of numbers at most."""
    spools = {stream: Outbox(tmp_path / stream) for stream in ("metric", "log")}
    server = Endless(spools["metric"])
    shipper = Shipper(server, spools)  # type: ignore[arg-type]
    spools["metric"].append([b'{"t":1}'])
    spools["log"].append([b'{"t":1,"m":"hello"}'])
    shipper.start()
    assert server.logged.wait(10)
    server.stop = True
    assert shipper.drained(10)


class Endless:
    """Server that sends another batch of metrics after each one that arrives, until it is stopped."""

    def __init__(self, spool: Outbox):
        self.spool, self.stop, self.logged = spool, False, threading.Event()

    def post_bytes(self, path: str, body: bytes) -> dict[str, Any]:
        count = len(zstandard.ZstdDecompressor().decompress(body).split(b"\n"))
        first = int(path.partition("seq_first=")[2].partition("&")[0])
        if "/metric" in path and not self.stop:
            self.spool.append([b'{"t":1}'])
        elif "/log" in path:
            self.logged.set()
        return {"next_seq": first + count}
