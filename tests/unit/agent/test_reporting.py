"""Orders reach the node, records reach the server, and refusals end neither in a loop nor in silence."""

from __future__ import annotations

import json
import select
import threading
from pathlib import Path
from typing import Any

import zstandard

from shoal.agent.reporting import Beats, Orders, Shipper
from shoal.agent.spool import Spool
from shoal.core.errors import Fenced, InvalidSpec, OutOfSequence, ShoalError, Unreachable


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


def beats(server: Server, orders: Orders) -> Beats:
    made = Beats(server, orders, lambda: {"step": 1})  # type: ignore[arg-type]
    made.start()
    return made


def test_a_beat_comes_when_the_server_wants_it() -> None:
    server = Server({"beat_in_s": 0.01, "grace_s": 3.0}, {"stop": True, "grace_s": 3.0})
    orders = Orders()
    made = beats(server, orders)
    made.update(state="running")
    assert select.select([orders.wake_r], [], [], 0.8)[0] and orders.stop
    made.leave()
    made.join(5)


def test_an_order_wakes_whoever_waits_for_it() -> None:
    orders = Orders()
    made = beats(Server({"stop": True, "grace_s": 3.0}), orders)
    made.update(state="running")
    assert select.select([orders.wake_r], [], [], 5)[0] and orders.stop_grace_s == 3.0 and not orders.fenced
    made.leave()
    made.join(5)


def test_a_change_is_told_at_once_and_known_to_be_delivered() -> None:
    server = Server({})
    made = beats(server, Orders())
    version = made.update(state="exited", exit_code=0)
    assert made.delivered(version, 5)
    assert server.calls[-1] == ("/beat", {"state": "exited", "exit_code": 0, "progress": {"step": 1}})
    made.leave()
    made.join(5)


def test_a_beat_refused_as_fenced_is_an_order() -> None:
    orders = Orders()
    made = beats(Server(Fenced()), orders)
    made.update(state="running")
    assert select.select([orders.wake_r], [], [], 5)[0] and orders.fenced
    made.leave()
    made.join(5)


def spool(tmp_path: Path, count: int) -> Spool:
    made = Spool(tmp_path)
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


def test_a_flood_in_one_stream_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Each round brings a batch of every stream, so a line of the log waits for one batch of numbers at most."""
    spools = {stream: Spool(tmp_path / stream) for stream in ("metric", "log")}
    server = Endless(spools["metric"])
    shipper = Shipper(server, spools)  # type: ignore[arg-type]
    spools["metric"].append([b'{"t":1}'])
    spools["log"].append([b'{"t":1,"m":"hello"}'])
    shipper.start()
    assert server.logged.wait(10)
    server.stop = True
    assert shipper.drained(10)


class Endless:
    """As long as it is not stopped, every batch of metrics that arrives is followed by another."""

    def __init__(self, spool: Spool):
        self.spool, self.stop, self.logged = spool, False, threading.Event()

    def post_bytes(self, path: str, body: bytes) -> dict[str, Any]:
        count = len(zstandard.ZstdDecompressor().decompress(body).split(b"\n"))
        first = int(path.partition("seq_first=")[2].partition("&")[0])
        if "/metric" in path and not self.stop:
            self.spool.append([b'{"t":1}'])
        elif "/log" in path:
            self.logged.set()
        return {"next_seq": first + count}
