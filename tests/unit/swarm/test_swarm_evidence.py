"""Reports of peers against each other: who is sent away, who cannot be, and whose samples count."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.swarm.evidence import ROUNDS, WINDOW, Evidence, accepted
from shoal.swarm.records import Progress

NAMES = [f"peer_{n}" for n in range(8)]
ALL = [f"Qm{name}" for name in NAMES]


def record(peer: str, **fields: Any) -> Progress:
    plain: dict[str, Any] = {"samples": 100, "mini_steps": 4, "members": ALL, "judged": True}
    return Progress(**{"peer": peer, "p2p": f"Qm{peer}"} | plain | fields)


class Swarm:
    """Eight peers; `odd` says who reports whom in a round."""

    def __init__(self) -> None:
        self.evidence, self.number = Evidence(), 0

    def round(self, odd: dict[str, list[str]] | None = None, **fields: Any) -> dict[str, Progress]:
        self.number += 1
        named = {peer: [f"Qm{name}" for name in names] for peer, names in (odd or {}).items()}
        records = {name: record(name, odd=named.get(name, []), **fields) for name in NAMES}
        self.evidence.add(self.number, list(records.values()), records)
        return records

    def guilty(self, records: dict[str, Progress]) -> list[str]:
        return list(self.evidence.guilty(records))


def by(*peers: str, of: str) -> dict[str, list[str]]:
    return {peer: [of] for peer in peers}


def test_a_liar_that_most_judges_report_is_guilty_after_three_rounds_and_the_evidence_names_them() -> None:
    swarm = Swarm()
    for _ in range(ROUNDS - 1):
        assert swarm.guilty(swarm.round(by(*NAMES[:5], of="peer_7"))) == []
    records = swarm.round(by(*NAMES[:5], of="peer_7"))
    assert swarm.guilty(records) == ["peer_7"]
    assert [mark.facts() for mark in swarm.evidence.marks("peer_7")] == [
        {"round": n, "by": NAMES[:5], "of": 7} for n in (1, 2, 3)
    ]


def test_the_rounds_need_not_follow_each_other() -> None:
    swarm = Swarm()
    accused = by(*NAMES[:5], of="peer_7")
    found = [swarm.guilty(swarm.round(odd)) for odd in (accused, {}, accused, {}, accused)]
    assert found == [[], [], [], [], ["peer_7"]]
    assert len(found) == WINDOW


def test_rounds_with_one_judge_each_add_up_to_evidence() -> None:
    """Of a small model, one peer reduces all: nobody else saw the parts of that round."""
    swarm = Swarm()
    for judge in NAMES[:3]:
        swarm.number += 1
        records = {
            name: record(name, judged=name == judge, odd=["Qmpeer_7"] if name == judge else []) for name in NAMES
        }
        swarm.evidence.add(swarm.number, list(records.values()), records)
    assert swarm.guilty(records) == ["peer_7"]


def test_one_or_two_false_accusers_send_nobody_away() -> None:
    swarm = Swarm()
    for _ in range(10):
        assert swarm.guilty(swarm.round(by("peer_6", "peer_7", of="peer_0"))) == []
    assert swarm.evidence.marks("peer_0") == []
    for judge in ("peer_6", "peer_7") * 5:  # and if only they judged
        swarm.number += 1
        records = {
            name: record(name, judged=name == judge, odd=["Qmpeer_0"] if name == judge else []) for name in NAMES
        }
        swarm.evidence.add(swarm.number, list(records.values()), records)
        assert swarm.guilty(records) == []


def test_many_new_names_of_one_attacker_have_no_vote_until_they_have_worked() -> None:
    swarm = Swarm()
    for _ in range(3):
        records = swarm.round()
    sybils = [f"sybil_{n}" for n in range(20)]
    for _ in range(6):
        swarm.number += 1
        records = {name: record(name) for name in NAMES}
        records |= {name: record(name, odd=["Qmpeer_0"], samples=10**9) for name in sybils}  # in no group of the others
        swarm.evidence.add(swarm.number, list(records.values()), records)
        assert swarm.guilty(records) == []
        assert sum(swarm.evidence.credit(swarm.number, list(records.values()))[name] for name in sybils) == 0


def test_who_claims_the_address_of_another_peer_cannot_pass_its_guilt_on() -> None:
    swarm = Swarm()
    swarm.round()
    for _ in range(ROUNDS):
        swarm.number += 1
        records = {name: record(name, odd=["Qmpeer_7"] if name != "peer_7" else []) for name in NAMES}
        records["a_thief"] = record("a_thief", p2p="Qmpeer_7")
        swarm.evidence.add(swarm.number, list(records.values()), records)
    assert swarm.guilty(records) == ["peer_7"]


def test_never_half_of_a_swarm() -> None:
    swarm = Swarm()
    for _ in range(WINDOW):
        records = swarm.round(dict.fromkeys(NAMES, NAMES[4:]))
    assert swarm.guilty(records) == []


def test_rounds_of_long_ago_and_those_before_a_rollback_do_not_count() -> None:
    swarm = Swarm()
    accused = by(*NAMES[:5], of="peer_7")
    for odd in (accused, accused, *[{}] * WINDOW, accused):
        assert swarm.guilty(swarm.round(odd)) == []
    swarm.round(accused)
    swarm.evidence.forget()
    assert swarm.guilty(swarm.round(accused)) == []


def test_samples_count_up_to_their_weight_in_the_average_and_only_of_those_who_took_part() -> None:
    records = [record(name) for name in NAMES[:5]]
    records += [record("peer_5", samples=10**6), record("peer_6"), record("alone", members=["Qmalone"])]
    assert accepted(records, ["peer_6"]) == {**dict.fromkeys(NAMES[:5], 100), "peer_5": 300, "peer_6": 0, "alone": 0}


@pytest.mark.parametrize("members", [[], ["Qmpeer_0"]])
def test_alone_or_with_large_batches_there_is_nobody_to_confirm_and_work_counts(members: list[str]) -> None:
    assert accepted([record("peer_0", members=members)], []) == {"peer_0": 100}
    assert accepted([], []) == {}
