"""The swarm in numbers, and what the owner orders because of them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shoal.swarm.agreement import Place
from shoal.swarm.control import TRIES, SwarmControl
from shoal.swarm.monitor import SETTLE_S, Monitor, totals, typical_loss
from shoal.swarm.records import Progress


def told(peer: str, **fields: Any) -> Progress:
    plain = {"peer": peer, "p2p": f"Qm{peer}", "loss": 4.0, "mini_steps": 2, "samples": 16, "samples_per_s": 2.0}
    return Progress(**plain | {"state_hash": f"h{fields.get('round', 0)}", "averaged": 1.0} | fields)


def swarm(*peers: str, **fields: Any) -> dict[str, Progress]:
    return {peer: told(peer, **fields) for peer in peers}


def test_totals_are_counted_as_seed_001_counts_them() -> None:
    records = [
        told("a", loss=30.0, mini_steps=3, samples=24, samples_per_s=5.5),
        told("b", loss=10.0, mini_steps=1, samples=24, samples_per_s=5.47),
    ]
    assert totals(records) == {"loss": 10.0, "alive peers": 2, "samples": 48, "performance": pytest.approx(10.97)}


def test_before_the_first_step_there_is_no_loss_and_no_division_by_zero() -> None:
    assert totals([told("a", loss=0.0, mini_steps=0)]) == {"alive peers": 1, "samples": 16, "performance": 2.0}
    assert totals([]) == {"alive peers": 0, "samples": 0, "performance": 0}


def test_one_peers_claim_does_not_move_the_typical_loss() -> None:
    records = [told("a"), told("b", loss=4.2), told("c", loss=math.nan)]
    assert typical_loss(records) == 2.1
    assert typical_loss([told("a", mini_steps=0)]) is None


def test_sums_change_with_the_round_and_speed_at_once() -> None:
    monitor = Monitor()
    first = monitor.progress(swarm("a", "b", round=1))
    assert (first["round"], first["loss"], first["samples"], first["alive"]) == (1, 2.0, 32, 2)
    same = monitor.progress(swarm("a", "b", round=1, loss=99.0, samples_per_s=3.0))
    assert (same["loss"], same["performance"]) == (2.0, 6.0)
    assert monitor.progress(swarm("a", "b", round=2, loss=3.0))["loss"] == 1.5


def test_a_row_of_the_table_has_what_a_peer_contributed() -> None:
    row = Monitor().progress(swarm("a", round=1, total_samples=160, bytes_in=5, bytes_out=7, name="laptop"))["peers"][0]
    assert row == {
        "peer": "a", "name": "laptop", "round": 1, "samples": 160, "samples_per_s": 2.0, "loss": 2.0, "mini_steps": 2,
        "bytes_in": 5, "bytes_out": 7, "state": "training", "averaged": 1.0,
    }  # fmt: skip


def test_a_round_is_told_once_when_all_have_it() -> None:
    monitor = Monitor()
    records = swarm("a", "b", round=1, round_s=2.5, bytes_out=100, averaged=0.5)
    late = records | {"b": told("b", round=0)}
    assert monitor.finished_rounds(late, 0.0) == []
    (settled,) = monitor.finished_rounds(records, 0.1)
    assert settled.event == {
        "event": "round", "round": 1, "rollbacks": 0, "seconds": 2.5, "members": ["a", "b"], "averaged": 0.5,
        "bytes": 200, "loss": 2.0,
    }  # fmt: skip
    assert monitor.finished_rounds(records, 1.0) == []
    (following,) = monitor.finished_rounds(swarm("a", "b", round=2, bytes_out=130), 2.0)
    assert following.event["bytes"] == 60


def test_a_round_that_waits_is_told_when_the_next_one_comes() -> None:
    monitor = Monitor()
    slow = {"c": told("c", round=0)}
    assert monitor.finished_rounds(swarm("a", "b", round=1) | slow, 0.0) == []
    (first,) = monitor.finished_rounds(swarm("a", "b", round=2) | slow, 1.0)
    assert (first.event["round"], first.event["members"]) == (1, ["a", "b"])
    (second,) = monitor.finished_rounds(swarm("a", "b", "c", round=2), 1.5)
    assert (second.event["round"], second.event["members"]) == (2, ["a", "b", "c"])


def test_a_round_does_not_wait_for_ever() -> None:
    monitor = Monitor()
    records = swarm("a", "b", round=1) | {"c": told("c", round=0)}
    assert monitor.finished_rounds(records, 0.0) == []
    (settled,) = monitor.finished_rounds(records, SETTLE_S + 0.1)
    assert settled.event["members"] == ["a", "b"]


class Run:
    """Rounds of a swarm whose owner's decisions are made by SwarmControl."""

    def __init__(self) -> None:
        self.monitor, self.now = Monitor(), 1000.0
        self.control = SwarmControl(members={}, banned=[], clock=lambda: self.now)

    def round(self, number: int, loss: float, *, rollbacks: int = 0, **fields: Any) -> list[dict[str, Any]]:
        self.now += 10.0
        records = swarm("a", "b", "c", "d", round=number, loss=2 * loss, rollbacks=rollbacks, **fields)
        self.control.see(records)
        (settled,) = self.monitor.finished_rounds(records, self.now)
        assert settled.place == Place(rollbacks, number)
        return self.control.judge(settled, records)


def test_a_loss_that_explodes_sends_the_swarm_back_to_the_last_good_round() -> None:
    run = Run()
    for number in range(1, 6):
        assert run.round(number, 2.0 - number / 10) == []
    # the exchange that ended round 5 was poisoned: round 6 trains on a bad state
    assert run.round(6, 50.0, odd=["Qmd"])[1:] == [
        {"event": "kicked", "peer": "d", "reason": "the loss rose to 50"},
        {"event": "rollback", "to_round": 4, "reason": "the loss rose to 50"},
    ]
    order = run.control.current_commands()
    assert order.rollback is not None
    assert (order.rollback.number, order.rollback.to_round, order.rollback.hash) == (1, 4, "h4")
    assert (order.banned, order.aggregation, order.stop) == (["d"], "robust", False)
    assert run.round(7, 60.0) == [], "whoever has not followed yet is not judged"
    assert run.round(4, 60.0, rollbacks=1) == [], "nor who has just done so, and tells of the round before"
    assert run.round(5, 1.6, rollbacks=1) == []
    assert not run.control.is_new


def test_a_swarm_that_explodes_again_and_again_is_stopped() -> None:
    run = Run()
    for number in range(1, 4):
        run.round(number, 2.0)
    events = []
    for again in range(TRIES + 1):
        events = run.round(4, math.inf, rollbacks=again)
        assert [event["to_round"] for event in events] == [2]
    assert "stops" in events[-1]["reason"]
    assert run.control.current_commands().stop


def test_what_peers_no_longer_have_comes_from_a_checkpoint() -> None:
    run = Run()
    run.control.saved(1, "kept")
    for number in range(1, 4):
        run.round(number, 2.0)
    events = run.round(20, math.inf)
    assert [event["to_round"] for event in events] == [1]
    order = run.control.current_commands()
    assert order.rollback is not None and order.rollback.hash == "kept"


def test_whoever_most_complain_of_in_three_rounds_is_sent_away_and_told_of_at_the_first() -> None:
    run = Run()
    (first,) = run.round(1, 2.0, odd=["Qmd"])
    assert first == {"event": "reported", "peer": "d", "round": 1, "by": ["a", "b", "c"], "of": 3}
    assert run.round(2, 2.0) == run.round(3, 2.0, odd=["Qmd"]) == []
    (sent,) = run.round(4, 2.0, odd=["Qmd"])
    assert (sent["event"], sent["peer"], [mark["round"] for mark in sent["evidence"]]) == ("kicked", "d", [1, 3, 4])
    assert sent["reason"] == "other peers reported its updates as outliers in rounds 1, 3, 4"
    assert run.control.current_commands().banned == ["d"]
    assert run.control.current_commands().rollback is None


def test_what_was_rolled_back_earns_nothing() -> None:
    run = Run()
    for number in range(1, 4):
        run.round(number, 2.0)
    run.round(4, math.inf)
    undone = Monitor().finished_rounds(swarm("a", "b", round=4), run.now)[0]
    assert run.control.credit(undone) == {}
    again = Monitor().finished_rounds(swarm("a", "b", round=4, rollbacks=1), run.now)[0]
    assert run.control.credit(again) == {"a": 16, "b": 16}


def test_half_of_the_swarm_is_never_sent_away() -> None:
    run = Run()
    for number in range(1, 4):
        run.round(number, 2.0)
    events = [event["event"] for event in run.round(4, math.inf, odd=["Qmc", "Qmd"])]
    assert "kicked" not in events and events[-1] == "rollback"


def test_versions_of_orders_grow() -> None:
    run = Run()
    first = run.control.current_commands()
    run.now += 1
    run.control.kick("b", "why not")
    assert run.control.kick("b", "again") == []
    second = run.control.current_commands()
    assert second.version > first.version
    assert second.banned == ["b"]
    run.control.set_members({"c": "key"}, [])
    assert run.control.is_new and run.control.current_commands().banned == []
