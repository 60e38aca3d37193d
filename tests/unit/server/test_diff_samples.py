"""Samples recomputed from ledgers that real feeds have written: where two jobs begin to use others."""

from shoal.sdk.samples.order import Dealing, epoch_order
from shoal.sdk.samples.sample_log import SampleLog
from shoal.server.web.job.diff_samples import feeds, first_difference


def ledger(steps, *, seed=1, size=20, batch=4, world=1, start=0, session="a", at=0.0, shuffle=True):
    """Return the sample log of the ranks of one attempt, for the steps from `start` on."""
    records = [
        {"k": "d", "name": "train", "size": size, "seed": seed, "batch": batch, "drop_last": False, "shuffle": shuffle,
         "x": session, "from": start, "t": at}
    ]  # fmt: skip
    dealing = Dealing(size=size, global_batch=batch, batch_size=batch, world=world)
    for rank in range(world):
        book = SampleLog(
            lambda line: records.append({"k": line.kind, **line.encode()}),
            name="train",
            session=session,
            rank=rank,
            world=world,
        )
        for step in range(start + 1, steps + 1):
            epoch, number = divmod(step - 1, dealing.batches)
            order = epoch_order(size, seed, epoch, shuffle=shuffle)
            book.add(epoch, number, order.part(*dealing.share(number, rank)))
            book.step(step)
        book.flush()
    return records


def where(first, second):
    found = first_difference(feeds(first), feeds(second))
    return found and found.step


def test_equal_seeds_use_equal_samples_whatever_the_number_of_workers():
    assert where(ledger(12), ledger(12)) is None
    assert where(ledger(12), ledger(12, world=2)) is None


def test_another_seed_or_batch_shows_at_the_first_step():
    found = first_difference(feeds(ledger(12)), feeds(ledger(12, seed=2)))
    assert (
        found.step == 1
        and found.first == epoch_order(20, 1, 0).part(0, 4)
        and found.second == epoch_order(20, 2, 0).part(0, 4)
    )
    assert where(ledger(12), ledger(12, batch=5)) == 1


def test_data_in_its_own_order_that_is_longer_shows_where_the_shorter_begins_anew():
    assert where(ledger(12, shuffle=False), ledger(12, size=24, shuffle=False)) == 6


def test_what_a_resume_has_made_void_does_not_count():
    broken = [*ledger(9, session="a"), *ledger(12, session="b", start=5, at=1.0)]
    assert where(ledger(12), broken) is None
    assert [line["x"] for line in feeds(broken)["train"].lines] == ["a", "b", "b"]


def test_a_resume_that_begins_the_epoch_again_is_found_at_its_step():
    again = ledger(12, session="b", start=7, at=1.0)
    for record in again:
        if record["k"] == "l":  # it reads from the beginning of its epoch, where it should go on
            record["p"] = [0, record["p"][1] - record["p"][0]]
    assert where(ledger(12), [*ledger(7, session="a"), *again]) == 8


def test_without_a_ledger_nothing_is_claimed():
    assert feeds([]) == {} and first_difference({}, feeds(ledger(3))) is None


def test_a_ledger_that_claims_the_impossible_costs_no_more_than_a_glance():
    huge = {"k": "d", "name": "train", "size": 10**12, "seed": 1, "batch": 10**11, "drop_last": False, "x": "a"}
    lines = [{"k": "l", "name": "train", "e": 0, "i": [1, 2**53], "p": [0, 2**53], "c": 0, "r": [0, 1], "x": "a"}]
    assert where([huge, *lines], [huge | {"batch": 10**10}, *lines]) == 2
    assert where([huge, *lines], [huge, *lines]) is None
