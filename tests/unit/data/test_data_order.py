"""Exactly once, in an order that depends neither on ranks nor on workers, also when another number of ranks goes on."""

from itertools import zip_longest

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.order import BEGINNING, WIDTHS, Deal, permutation, walk, width

ALONE = Deal()
counts = st.lists(st.integers(0, 9), max_size=14)
worlds = st.integers(1, 6)
batches = st.integers(1, 4)
cursors = st.sampled_from([1, 2, 3, 4])


class Block:
    """A cursor on a block of known length; with `hidden`, one that has to be asked."""

    def __init__(self, block, start, count, hidden=False):
        self.block, self.start, self.count, self.hidden = block, start, count, hidden

    @property
    def end(self):
        return None if self.hidden else self.start + self.count

    def has(self, turn):
        return turn < self.start + self.count


def route(lengths, deal=ALONE, *, by=3, place=BEGINNING, low=None, hidden=(), note=lambda place: None):
    """(position, block, record in it) of a walk, and the length it returns."""

    def take(block, start):
        return Block(block, start, lengths[block], hidden=block in hidden)

    found = []
    low = deal.base if low is None else low
    steps = walk(len(lengths), min(by, len(lengths)), take, deal, place=place, low=low, note=note)
    while True:
        try:
            position, cursor, turn = next(steps)
        except StopIteration as stop:
            return found, stop.value
        found.append((position, cursor.block, turn - cursor.start))


def share(*args, **options):
    return [(block, record) for _, block, record in route(*args, **options)[0]]


@given(counts, cursors)
def test_every_record_has_one_place_in_the_order(lengths, by):
    found, length = route(lengths, by=by)
    assert [position for position, _, _ in found] == list(range(sum(lengths)))
    assert sorted((block, record) for _, block, record in found) == [
        (b, r) for b, n in enumerate(lengths) for r in range(n)
    ]
    assert length == sum(lengths)


def test_cursors_take_turns_and_then_the_next_block():
    assert share([2, 4, 1, 2], by=2) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (1, 2), (3, 0), (1, 3), (3, 1)]


@given(counts, cursors, worlds)
def test_a_rank_gets_every_nth_sample_of_the_one_order(lengths, by, world):
    order = share(lengths, by=by)
    for rank in range(world):
        assert share(lengths, Deal(rank, world), by=by) == order[rank::world]


@given(counts, worlds, st.integers(1, 4), batches)
def test_what_workers_hand_over_in_turn_is_their_ranks_order(lengths, world, workers, batch):
    order = share(lengths)
    for rank in range(world):
        shares = [share(lengths, Deal(rank, world, worker, workers, batch)) for worker in range(workers)]
        cut = [[s[at : at + batch] for at in range(0, len(s), batch)] for s in shares]
        # A DataLoader takes a batch from each worker in turn, and leaves out those that have ended.
        loaded = [record for turn in zip_longest(*cut, fillvalue=[]) for records in turn for record in records]
        assert loaded == order[rank::world]


@given(counts, worlds, worlds, st.integers(0, 40), batches, st.integers(1, 3))
def test_another_number_of_ranks_goes_on_with_exactly_what_is_left(lengths, before, after, steps, batch, workers):
    order = share(lengths)
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


@given(counts, cursors, worlds, st.integers(1, 3), batches, st.sets(st.integers(0, 13)), st.integers(0, 60))
def test_blocks_that_have_to_be_asked_change_nothing(lengths, by, world, workers, batch, hidden, low):
    for rank in range(world):
        deal = Deal(rank, world, rank % workers, workers, batch)
        expected = route(lengths, deal, by=by, low=low)
        assert route(lengths, deal, by=by, low=low, hidden=hidden) == expected


@given(counts, cursors, worlds, st.sets(st.integers(0, 13)), st.data())
def test_a_walk_can_begin_at_any_place_it_noted(lengths, by, world, hidden, data):
    noted = [BEGINNING]
    route(lengths, by=by, hidden=hidden, note=noted.append)
    place = data.draw(st.sampled_from(noted))
    position = data.draw(st.integers(place.at, place.at + 30))
    deal = Deal(world - 1, world, base=position)
    assert route(lengths, deal, by=by, place=place) == route(lengths, deal, by=by)


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
    assert WIDTHS == (48, 24, 12, 8, 6, 4, 3, 2, 1)


def test_epochs_and_seeds_have_different_orders():
    orders = {tuple(permutation(50, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_there_are_no_more_cursors_than_blocks():
    assert [width(n) for n in (0, 1, 5, 7, 47, 48, 1000)] == [0, 1, 4, 6, 24, 48, 48]


@given(st.lists(st.integers(1, 9), min_size=300, max_size=300))
@settings(max_examples=20, deadline=None)
def test_a_rank_reads_few_blocks_of_others(lengths):
    """For any lengths, cursors stay with their rank until the last blocks run out."""
    for world in (2, 3, 8, 16):
        blocks = {block for block, _ in share(lengths, Deal(1, world), by=48)}
        assert len(blocks) <= 300 / world + 60
