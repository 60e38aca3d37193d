"""Checkpoints of a job that are kept."""

import pytest

from shoal.core.retention import Retention


def rows(*metrics, kept=()):
    """Oldest first."""
    return [
        {"id": f"c{i}", "kept": i in kept, "metrics": {"loss": m} if m is not None else {}}
        for i, m in enumerate(metrics)
    ]


def test_without_a_rule_all_stay():
    assert Retention().chosen(rows(1, 2, 3)) == {"c0", "c1", "c2"}


@pytest.mark.parametrize(("keep", "stay"), [(1, {"c3"}), (2, {"c2", "c3"}), (9, {"c0", "c1", "c2", "c3"})])
def test_the_newest_stay(keep, stay):
    assert Retention(keep_last=keep).chosen(rows(1, 2, 3, 4)) == stay


def test_what_is_to_be_kept_stays_beside_the_newest():
    assert Retention(keep_last=1).chosen(rows(1, 2, 3, kept={0})) == {"c0", "c2"}


@pytest.mark.parametrize(("metric", "best"), [("loss", "c1"), ("-loss", "c0")])
def test_the_best_stays_beside_the_newest(metric, best):
    assert Retention(keep_best=metric).chosen(rows(9, 1, 5, None)) == {best, "c3"}


def test_one_stays_though_none_has_the_metric():
    assert Retention(keep_best="accuracy").chosen(rows(1, 2)) == {"c1"}
