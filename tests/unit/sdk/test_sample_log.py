"""The audit finds what is wrong with a ledger, and only that."""

import copy

import pytest

from shoal.sdk.samples.order import Dealing, epoch_order
from shoal.sdk.samples.sample_log import SampleLog, audit

SIZE, BATCH, SEED = 50, 8, 4


class Session:
    """Ranks that consume batches and write the ledger, as training does."""

    def __init__(self, name, world, start, records):
        self.records, self.name, self.world, self.step = records, name, world, start
        self.dealing = Dealing(size=SIZE, global_batch=BATCH, batch_size=BATCH, world=world)
        records.append(
            {"k": "d", "t": len(records), "name": "x", "size": SIZE, "seed": SEED, "batch": BATCH, "drop_last": False}
            | {"shuffle": True, "x": name, "from": start}
        )
        write = lambda line: records.append({"k": line.kind, "t": len(records), **line.encode()})  # noqa: E731
        self.ledgers = [SampleLog(write, name="x", session=name, rank=r, world=world) for r in range(world)]

    def train(self, steps, save=True):
        for self.step in range(self.step + 1, self.step + steps + 1):  # noqa: B020
            epoch, batch = divmod(self.step - 1, self.dealing.batches)
            order = epoch_order(SIZE, SEED, epoch)
            for rank, ledger in enumerate(self.ledgers):
                ledger.add(epoch, batch, order.part(*self.dealing.share(batch, rank)))
                ledger.step(self.step)
        if save:
            for ledger in self.ledgers:
                ledger.flush()


@pytest.fixture
def broken_run():
    """Two epochs of seven batches: four workers to step 5 and beyond, two from 5, one from 9."""
    records = []
    first = Session("a", 4, 0, records)
    first.train(5)
    first.train(3)
    second = Session("b", 2, 5, records)
    second.train(4)
    Session("c", 1, 9, records).train(5)
    return records


def test_an_unbroken_and_a_broken_run_are_both_whole(broken_run):
    unbroken = []
    Session("a", 2, 0, unbroken).train(14)
    for records, sessions in ((unbroken, 1), (broken_run, 3)):
        report = audit(records)
        assert report.ok, report.difference
        assert (report.epochs, report.samples, report.sessions) == (2, 2 * SIZE, sessions)
    assert audit(broken_run).superseded == 8, "two lines a rank: the epoch ended in between"


def test_other_samples_are_found(broken_run):
    next(r for r in broken_run if r["k"] == "l" and r["x"] == "b")["c"] ^= 1
    report = audit(broken_run)
    assert not report.ok
    assert "rank 0 of 2 used other samples than its share in batches 5 to 6 of epoch 0" in report.difference


def test_a_missing_share_and_a_missing_batch_are_found(broken_run):
    for lacking, text in (
        (lambda r: r.get("x") == "a" and r["r"][0] == 2, "the shares of ranks [2] of batch"),
        (lambda r: r.get("x") == "b" and r["e"] == 1, "batch 0 of epoch 1 was not used"),
        (lambda r: r.get("x") == "b" and r["e"] == 0, "the samples of steps 6 to 7 are not in the sample log"),
    ):
        report = audit([r for r in broken_run if r["k"] != "l" or not lacking(r)])
        assert not report.ok
        assert text in report.difference


def test_a_batch_used_twice_is_found(broken_run):
    line = next(r for r in broken_run if r["k"] == "l")
    report = audit([*broken_run, copy.deepcopy(line)])
    assert "was used twice" in report.difference


def test_the_end_of_a_killed_run_is_not_held_against_it():
    records = []
    session = Session("a", 2, 0, records)
    session.train(5)
    session.train(2, save=False)
    session.ledgers[0].flush()
    report = audit(records)
    assert report.ok, report.difference
    assert report.samples == 5 * BATCH
