"""Exactly once, in an order that depends neither on ranks nor on workers, also when another number of ranks goes on."""

from itertools import zip_longest

from hypothesis import given
from hypothesis import strategies as st

from shoal.data.order import LANES, Deal, deal_counted, deal_uncounted, permutation

counts = st.lists(st.integers(0, 12), max_size=8)
worlds = st.integers(1, 6)
batches = st.integers(1, 4)


class Known:
    """A lane that is asked instead of counted."""

    def __init__(self, count):
        self.count = count

    def has(self, turn):
        return turn < self.count


def everything(lengths, start=0):
    return [(lane, turn) for _, lane, turn in deal_counted(lengths, start, Deal(base=start), start)]


def share(lengths, deal, start=0, low=None):
    low = deal.base if low is None else low
    return [(lane, turn) for _, lane, turn in deal_counted(lengths, start, deal, low)]


@given(counts)
def test_every_record_has_one_place_in_the_order(lengths):
    order = everything(lengths)
    assert sorted(order) == [(lane, turn) for lane, count in enumerate(lengths) for turn in range(count)]


@given(counts, st.integers(0, 1000))
def test_records_are_taken_from_the_lanes_in_turn(lengths, start):
    by_hand = [(lane, turn) for turn in range(max(lengths, default=0)) for lane, n in enumerate(lengths) if turn < n]
    assert everything(lengths, start) == by_hand


@given(counts, worlds)
def test_a_rank_gets_every_nth_sample_of_the_one_order(lengths, world):
    order = everything(lengths)
    for rank in range(world):
        assert share(lengths, Deal(rank, world)) == order[rank::world]


@given(counts, worlds, st.integers(1, 4), batches)
def test_what_workers_hand_over_in_turn_is_their_ranks_order(lengths, world, workers, batch):
    order = everything(lengths)
    for rank in range(world):
        shares = [share(lengths, Deal(rank, world, worker, workers, batch)) for worker in range(workers)]
        cut = [[s[at : at + batch] for at in range(0, len(s), batch)] for s in shares]
        # A DataLoader takes a batch from each worker in turn, and leaves out those that have ended.
        loaded = [record for turn in zip_longest(*cut, fillvalue=[]) for records in turn for record in records]
        assert loaded == order[rank::world]


@given(counts, worlds, worlds, st.integers(0, 40), batches, st.integers(1, 3))
def test_another_number_of_ranks_goes_on_with_exactly_what_is_left(lengths, before, after, steps, batch, workers):
    order = everything(lengths)
    position = steps * before
    seen = [r for rank in range(before) for r in share(lengths, Deal(rank, before))[:steps]]
    rest = [
        r
        for rank in range(after)
        for worker in range(workers)
        for r in share(lengths, Deal(rank, after, worker, workers, batch, base=position))
    ]
    assert sorted(seen + rest) == sorted(order)
    assert sorted(seen) == sorted(order[:position])
    assert share(lengths, Deal(0, after, base=position)) == order[position:][::after]


@given(counts, worlds, st.integers(1, 3), batches, st.integers(0, 9), st.integers(0, 60))
def test_asking_lanes_deals_as_counting_them_does(lengths, world, workers, batch, start, low):
    for rank in range(world):
        for worker in range(workers):
            deal = Deal(rank, world, worker, workers, batch, base=min(start, low))
            asked, end = [], None
            walk = deal_uncounted([Known(n) for n in lengths], start, deal, low)
            while end is None:
                try:
                    asked.append(next(walk))
                except StopIteration as stop:
                    end = stop.value
            assert asked == list(deal_counted(lengths, start, deal, low))
            assert end == start + sum(lengths)


@given(worlds, st.integers(1, 4), batches, st.integers(0, 10), st.integers(0, 20), st.integers(0, 50))
def test_positions_are_those_it_owns(world, workers, batch, base, low, high):
    for rank in range(world):
        for worker in range(workers):
            deal = Deal(rank, world, worker, workers, batch, base)
            assert list(deal.positions(low, high)) == [p for p in range(low, high) if deal.owns(p)]


@given(worlds, st.integers(0, 30), st.integers(0, 200))
def test_a_round_ends_when_every_rank_has_had_its_sample(world, base, ahead):
    end = Deal(0, world, base=base).round_end(base + ahead)
    assert (end - base) % world == 0
    assert end - world <= base + ahead < end


@given(st.integers(0, 60), st.integers(0, 5), st.integers(0, 5))
def test_a_permutation_holds_every_number_once(length, seed, epoch):
    assert sorted(permutation(length, seed, epoch)) == list(range(length))


def test_an_order_is_the_same_on_every_machine_and_python():
    # Saved states depend on these very numbers.
    assert permutation(8, 0, 0, "blocks") == [3, 5, 1, 2, 7, 0, 6, 4]
    assert LANES == 48


def test_epochs_and_seeds_have_different_orders():
    orders = {tuple(permutation(50, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_whole_lanes_fall_to_one_rank_where_the_world_size_divides_them():
    lengths = [10] * LANES
    for world in (1, 2, 3, 4, 6, 8, 12, 16, 24, 48):
        for rank in range(world):
            assert {lane for lane, _ in share(lengths, Deal(rank, world))} == set(range(rank, LANES, world))
