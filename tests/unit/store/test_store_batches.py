"""Batches keep the order, the limits and every item."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.store.batches import in_batches


@given(st.lists(st.integers(0, 30)), st.integers(1, 40), st.integers(1, 5))
def test_every_item_comes_once_and_in_order_and_no_batch_is_too_large(sizes, max_bytes, max_count):
    made = list(in_batches(((n, size) for n, size in enumerate(sizes)), max_bytes=max_bytes, max_count=max_count))
    assert [n for batch in made for n in batch] == list(range(len(sizes)))
    for batch in made:
        assert 1 <= len(batch) <= max_count
        assert len(batch) == 1 or sum(sizes[n] for n in batch) <= max_bytes


def test_nothing_makes_no_batch():
    assert list(in_batches([], max_bytes=1, max_count=1)) == []
