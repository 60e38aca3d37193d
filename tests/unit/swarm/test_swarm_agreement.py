"""The state that the swarm holds: the newest round, the one most peers have there, and the same answer for all."""

from __future__ import annotations

import itertools
import time

from shoal.swarm.agreement import Place, agreed, count_beside, is_astray, vouched
from shoal.swarm.records import Progress


def record(peer: str, round: int = 3, hash: str | None = "a", **more: object) -> Progress:
    return Progress(
        peer=peer, p2p=f"p2p-{peer}", round=round, state_hash=hash, **{"averaged": 1.0, "serves_state": True, **more}
    )  # type: ignore[arg-type]


def test_nobody_has_said_anything():
    assert agreed([]) is None
    assert agreed([record("one", hash=None)]) is None


def test_of_two_the_newer_round_counts():
    found = agreed([record("one"), record("two", round=4, hash="b")])
    assert found is not None and (found.place, found.hash) == (Place(0, 4), "b")


def test_of_three_or_more_a_single_one_ahead_moves_nobody():
    ahead = record("eve", round=9, hash="evil")
    found = agreed([record("one"), record("two"), ahead])
    assert found is not None and (found.place, found.hash) == (Place(0, 3), "a")
    found = agreed([record("two"), ahead], besides=1)
    assert found is not None and found.hash == "a"


def test_more_than_a_third_ahead_are_followed_and_fewer_are_not():
    eight = [record(f"peer {n}") for n in range(8)]
    newer = [record(f"peer {n}", round=4, hash="b") for n in range(8)]
    assert [agreed([*newer[:n], *eight[n:]]).hash for n in range(5)] == ["a", "a", "a", "b", "b"]  # type: ignore[union-attr]


def test_two_who_lie_alike_are_outvoted_in_their_round():
    liars = [record(f"liar {n}", round=4, hash="evil") for n in range(2)]
    honest = [record(f"peer {n}", round=4, hash="b") for n in range(6)]
    assert agreed([*liars, *honest]).hash == "b"  # type: ignore[union-attr]


def test_in_a_round_the_state_most_have_counts():
    found = agreed([record("one", hash="b"), record("two"), record("three")])
    assert found is not None and found.hash == "a"
    assert [holder.peer for holder in found.holders] == ["three", "two"]


def test_between_equals_the_one_whose_exchange_was_whole():
    found = agreed([record("one", averaged=0.6), record("two", hash="b")])
    assert found is not None and found.hash == "b"


def test_all_who_see_the_same_records_agree_in_whatever_order_they_see_them():
    records = [record("one"), record("two", hash="b"), record("three", hash="c"), record("four", round=2)]
    assert {agreed(order).hash for order in itertools.permutations(records)} == {"a"}  # type: ignore[union-attr]


def test_after_a_rollback_an_earlier_round_is_newer():
    found = agreed([record("one", round=9), record("two", round=5, hash="b", rollbacks=1)])
    assert found is not None and found.hash == "b"
    assert Place(1, 5).epoch > Place(0, 9).epoch


def test_who_leaves_is_not_asked_and_who_cannot_serve_is_asked_last():
    found = agreed([record("one", serves_state=False), record("two"), record("three", state="leaving")])
    assert found is not None and [holder.peer for holder in found.holders] == ["two", "one"]


def test_only_who_said_lately_that_it_holds_our_state_is_waited_for_or_that_it_is_about_to():
    here, now = Place(0, 3), time.time()
    records = [
        record("here"),
        record("another model", hash="b"),
        record("silent", time=now - 40.0),
        record("leaving", state="leaving"),
        record("about to come", round=2, hash="before"),
        record("died in the last round", round=2, hash="before", time=now - 10.0),
        record("behind on another way", round=2, hash="b"),
        record("far behind", round=1, hash="before"),
    ]
    for number, asked in enumerate(records):
        found = count_beside(here, "a", ["before", "a"], [asked], within_s=30.0, lag_s=5.0)
        assert found == (number in (0, 4)), asked.peer


def test_what_nobody_can_download_is_never_the_state_of_the_swarm():
    first, hidden = record("first", round=600, hash="served"), record("slow", round=300, hash="own", serves_state=False)
    found = agreed([first, hidden], besides=1)
    assert found is not None and found.hash == "served"
    ahead = record("slow", round=900, hash="own", serves_state=False)
    assert agreed([first, ahead]).hash == "served"  # type: ignore[union-attr]
    assert vouched("served", [record("first", 600, "served", recent={"served": 600}), hidden], besides=1) == Place(
        0, 600
    )
    alone = agreed([hidden])
    assert alone is not None and alone.hash == "own", "there is nothing else"


def test_a_state_is_vouched_for_by_those_who_hold_it_and_those_who_held_it_a_moment_ago():
    on, ahead = Place(1, 4), Place(1, 5)
    records = [
        record("a", 4, "old", rollbacks=1, recent={"old": on.epoch}),
        record("b", 5, "new", rollbacks=1, recent={"old": on.epoch, "new": ahead.epoch}),
    ]
    assert vouched("old", records, besides=1) == on
    assert vouched("new", records, besides=1) is None, "one of three is not enough"
    assert vouched("new", records[1:], besides=1) == ahead, "of two, one is"
    assert vouched("other", records) is None and vouched("old", []) is None


def test_who_went_on_alone_from_something_else_goes_back_to_what_most_hold():
    most = [record(peer, 265, "theirs", recent={"theirs": 265, "before": 264}) for peer in ("slow", "late")]
    alone = record("first", 308, "own", recent={"own": 308, "own before": 307})
    goal = agreed([*most, alone])
    assert goal is not None and goal.hash == "theirs"
    assert is_astray(alone, goal, most)
    ahead = record("first", 266, "next", recent={"next": 266, "theirs": 265})
    assert not is_astray(ahead, goal, most), "they are about to come after it"
    followed = [*most, record("fourth", 308, "own", recent={"own": 308})]
    assert not is_astray(alone, goal, followed), "somebody knows what it holds"


def test_of_two_who_went_different_ways_only_the_one_that_gives_nothing_goes_back():
    other = record("other", 100, "theirs", recent={"theirs": 100})
    hidden = record("hidden", 300, "own", recent={"own": 300}, serves_state=False)
    goal = agreed([other, hidden])
    assert goal is not None and goal.hash == "theirs" and is_astray(hidden, goal, [other])
    third = record("third", 90, "third", recent={"third": 90})
    giver = record("giver", 300, "own", recent={"own": 300})
    goal = agreed([giver, other, third])
    assert goal is not None and goal.hash == "theirs"
    assert not is_astray(giver, goal, [other, third]), "no two of them agree yet"
