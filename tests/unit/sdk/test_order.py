"""The order of samples and their dealing, whatever the numbers."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.sdk.samples import order as module
from shoal.sdk.samples.order import Dealing, crc_of, cut, epoch_order
from shoal.sdk.samples.sampler import DealtFeed

sizes = st.integers(1, 400)
seeds = st.integers(0, 2**40)


@given(size=sizes, seed=seeds, epoch=st.integers(0, 50))
@settings(deadline=None)
def test_an_epoch_holds_every_sample_once(size, seed, epoch):
    assert sorted(epoch_order(size, seed, epoch)) == list(range(size))


@given(size=sizes, seed=seeds, start=st.integers(0, 400), length=st.integers(0, 400))
@settings(deadline=None)
def test_any_part_of_the_order_can_be_had_alone(size, seed, start, length):
    assert (
        epoch_order(size, seed, 1)[start : start + length] == list(epoch_order(size, seed, 1))[start : start + length]
    )


@pytest.mark.parametrize("size", [1, 2, 3, 97, 8192, 20_011])
def test_numpy_torch_and_plain_integers_give_the_same_order(size, monkeypatch):
    expected = epoch_order(size, 5, 2)[:]
    for libraries in (("torch",), ()):
        monkeypatch.setattr(module, "_LIBRARIES", libraries)
        assert epoch_order(size, 5, 2)[:] == expected


def test_the_order_never_changes_between_versions():
    assert epoch_order(10, 0, 0)[:] == [9, 1, 0, 3, 4, 2, 7, 6, 5, 8]
    assert crc_of(epoch_order(1_000_000, 42, 3)[999_000:]) == 1930879702


def test_a_billion_samples_need_no_memory():
    order = epoch_order(10**9, 1, 2)
    assert len({*order[:1000], *order[10**9 - 1000 :]}) == 2000


def test_orders_of_seeds_and_epochs_are_not_alike():
    orders = {tuple(epoch_order(4, seed, epoch)) for seed, epoch in itertools.product(range(20), range(20))}
    assert len(orders) == 24, "every permutation of four turns up"
    assert epoch_order(1000, 1, 0)[:] != epoch_order(1000, 1, 1)[:] != epoch_order(1000, 2, 0)[:]


@given(total=st.integers(0, 300), pieces=st.integers(1, 40))
@settings(deadline=None)
def test_cuts_are_contiguous_and_even(total, pieces):
    ranges = [cut(total, pieces, i) for i in range(pieces)]
    assert ranges[0][0] == 0 and ranges[-1][1] == total
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    lengths = [end - start for start, end in ranges]
    assert max(lengths) - min(lengths) <= 1


dealings = st.builds(
    Dealing,
    size=sizes,
    global_batch=st.integers(1, 64),
    batch_size=st.integers(1, 16),
    world=st.integers(1, 9),
    drop_last=st.booleans(),
)


@given(dealing=dealings, seed=seeds)
@settings(max_examples=60, deadline=None)
def test_dealt_to_any_world_each_sample_comes_once_in_the_order_of_the_epoch(dealing, seed):
    order = epoch_order(dealing.size, seed, 0)
    plans = [list(DealtFeed("x", dealing, seed=seed, shuffle=True, rank=r).plan()) for r in range(dealing.world)]
    assert {len(plan) for plan in plans} == {dealing.iterations}, "ranks stay in step"
    for batch in range(dealing.batches):
        dealt = [i for plan in plans for m in plan if m.batch == batch for i in m.indices[: m.used]]
        assert dealt == order[slice(*dealing.span(batch))]
        weights = [m.weight for plan in plans for m in plan if m.batch == batch]
        assert abs(sum(weights) / dealing.world - 1) < 1e-9, "the gradient is a mean"
    for micro in itertools.chain.from_iterable(plans):
        assert 1 <= len(micro.indices) <= dealing.batch_size
        assert micro.used in (0, len(micro.indices))
        assert (micro.weight == 0) == (micro.used == 0)
    used = sum(m.used for plan in plans for m in plan)
    assert used == (dealing.size - dealing.size % dealing.global_batch if dealing.drop_last else dealing.size)


@given(dealing=dealings, seed=seeds, stops=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), max_size=4))
@settings(max_examples=60, deadline=None)
def test_broken_off_and_resumed_at_other_world_sizes_the_order_is_the_same(dealing, seed, stops):
    expected = [
        epoch_order(dealing.size, seed, e)[slice(*dealing.span(b))] for e in (0, 1) for b in range(dealing.batches)
    ]
    found, state = [], None
    worlds = [(after, world) for after, world in stops] + [(10_000, dealing.world)]
    for after, world in worlds:
        mine = Dealing(
            size=dealing.size,
            global_batch=dealing.batch_size * world,
            batch_size=dealing.batch_size,
            world=world,
            drop_last=dealing.drop_last,
        )
        feeds = [DealtFeed("x", mine, seed=0, shuffle=True, rank=r) for r in range(world)]
        for feed in feeds:
            first = {"epoch": 0, "batch": 0, "seed": seed, "global_batch": dealing.global_batch}
            feed.load(state or first, skip=False)
        while after and feeds[0].epoch < 2:
            passes = [feed.plan() for feed in feeds if feed.begin()]
            while after:
                shares = [_next_batch(feed, plan) for feed, plan in zip(feeds, passes, strict=True)]
                if shares[0] is None:
                    break
                found.append([i for share in shares for i in share])
                after -= 1
            else:
                break
            for feed in feeds:
                feed.end()
        state = feeds[0].state()
        assert all(feed.state() == state for feed in feeds)
    assert found == expected


def _next_batch(feed, plan):
    """All iterations of one global batch on one rank, consumed and stepped on; None at the end of the epoch."""
    share = []
    for micro in plan:
        feed.begin_batch(micro)
        feed.use()
        share += micro.indices[: micro.used]
        if micro.is_last:
            return share
    feed.stepped = True
    return None
