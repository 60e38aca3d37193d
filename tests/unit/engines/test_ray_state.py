"""The driver's state tells whoever waits, at once and only of changes; records keep what is wanted over a restart."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

from shoal.engines.ray.records import Goal, NodeRecord, Record, Records
from shoal.engines.ray.state import ALIVE, GONE, STARTING, ClusterState


def test_an_attempt_begins_once() -> None:
    state = ClusterState()
    assert state.begin("att_1", [0, 1])
    assert not state.begin("att_1", [0, 1])
    assert state.wait(-1, 0)["agents"] == {"att_1": {"0": STARTING, "1": STARTING}}


def test_whoever_waits_hears_of_a_change_at_once_and_of_nothing_else() -> None:
    state, heard = ClusterState(), []
    state.begin("att_1", [0])
    known = state.wait(-1, 0)["version"]
    assert state.wait(known, 0.01)["version"] == known
    listener = threading.Thread(target=lambda: heard.append(state.wait(known, 60)))
    listener.start()
    state.alive("att_1", 0)
    listener.join(10)
    assert heard[0]["agents"] == {"att_1": {"0": ALIVE}}
    state.alive("att_1", 0)
    assert state.wait(heard[0]["version"], 0)["version"] == heard[0]["version"]


def test_it_is_over_when_its_last_node_is_gone() -> None:
    state = ClusterState()
    assert not state.is_over("att_1")
    state.begin("att_1", [0, 1])
    state.gone("att_1", 0)
    assert not state.is_over("att_1")
    state.gone("att_1", 1)
    assert state.is_over("att_1")
    state.forget("att_1")
    assert state.wait(-1, 0)["agents"] == {}


def test_one_that_is_gone_does_not_come_back_by_late_news() -> None:
    state = ClusterState()
    state.begin("att_1", [0, 1])
    state.gone("att_1", 0)
    state.alive("att_1", 0)
    assert state.wait(-1, 0)["agents"] == {"att_1": {"0": GONE, "1": STARTING}}
    state.gone("att_2", 0)
    assert state.attempts == {"att_1"}


def test_one_that_an_earlier_gateway_began_is_known_once_heard_of() -> None:
    state = ClusterState()
    state.alive("att_1", 1)
    assert state.wait(-1, 0)["agents"] == {"att_1": {"1": ALIVE}}


def test_a_failure_is_told_with_its_reason_and_failures_do_not_pile_up() -> None:
    state = ClusterState()
    for number in range(300):
        state.begin(f"att_{number}", [0])
        state.fail(f"att_{number}", "no room")
    told = state.wait(-1, 0)
    assert told["agents"] == {}
    assert told["failed"]["att_299"] == "no room"
    assert len(told["failed"]) <= 100


def test_machines_are_unknown_until_they_were_looked_at() -> None:
    state = ClusterState()
    assert state.wait(-1, 0)["machines"] is None
    state.set_machines(["a"])
    assert state.wait(-1, 0)["machines"] == ["a"] == state.machines


def record(attempt_id: str = "att_1") -> Record:
    node = NodeRecord(node=0, machine="a", work_dir="/w", argv=["python"], salvage=["python", "--salvage"])
    return Record(attempt_id=attempt_id, nodes=[node])


def test_records_outlive_whoever_wrote_them_and_are_private(tmp_path: Path) -> None:
    records = Records(tmp_path / "attempts")
    records.put(record())
    records.want("att_1", Goal.CANCEL)
    [path] = (tmp_path / "attempts").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [again] = Records(tmp_path / "attempts").all()
    assert again == records.get("att_1")
    assert again.wish is Goal.CANCEL and again.find(0) is not None and again.find(1) is None
    assert again.unsaid == (0,), "who is ended by us has not said its last words"
    records.set_unsaid("att_1", 0, unsaid=False)
    assert Records(tmp_path / "attempts").all()[0].unsaid == ()
    records.drop("att_1")
    assert not Records(tmp_path / "attempts").all()


def test_nothing_is_wanted_of_an_attempt_nobody_knows(tmp_path: Path) -> None:
    assert Records(tmp_path).want("att_1", Goal.CLEAN) is None
    assert not list(tmp_path.iterdir())
