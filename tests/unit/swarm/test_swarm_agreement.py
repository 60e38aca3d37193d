"""Which state the swarm holds: the newest round, there the one most have, and the same answer for everybody."""

from __future__ import annotations

import itertools

from shoal.swarm.agreement import Place, agreed, count_at, vouched
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


def test_only_who_said_lately_that_it_is_at_the_place_is_waited_for():
    here, long_ago = Place(0, 3), {"time": 0.0}
    records = [record("one"), record("two", round=2), record("three", **long_ago), record("four", state="leaving")]
    assert count_at(here, records, within_s=30.0) == 1


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
