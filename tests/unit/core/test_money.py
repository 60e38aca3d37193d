"""Amounts and budgets as people type and read them."""

import pytest

from shoal.core.errors import UsageError
from shoal.core.jobs import JobSpec
from shoal.core.money import Budget, amount, cost_of, parse_budget, plain_budget


@pytest.mark.parametrize(
    ("text", "budget", "kept"),
    [
        ("5", Budget(micros=5_000_000), "5.00"),
        ("0.0125", Budget(micros=12_500), "0.0125"),
        ("2h", Budget(slot_ms=7_200_000), "2h"),
        ("1h30m", Budget(slot_ms=5_400_000), "90m"),
    ],
)
def test_a_budget_is_money_or_time_of_slots(text, budget, kept):
    assert parse_budget(text) == budget
    assert plain_budget(text) == kept and parse_budget(kept) == budget


@pytest.mark.parametrize("text", ["0", "-1", "five", "5 EUR", "", "1e9", "nan", "0.0000001"])
def test_what_is_neither_is_refused_with_examples(text):
    with pytest.raises(UsageError) as refused:
        parse_budget(text)
    assert refused.value.hint == "Like this: --budget 5.00, or --budget 2h"
    with pytest.raises(ValueError, match="budget"):
        JobSpec(name="a", entry=["t.py"], source_id="s", budget=text)


def test_a_budget_that_is_kept_is_the_one_that_was_given():
    for text in ("1.234567", "0.012345", "12.5"):
        assert parse_budget(plain_budget(text)) == parse_budget(text)


def test_costs_are_exact_to_a_millionth():
    assert cost_of(3_600_000, 1_200_000) == 1_200_000
    assert cost_of(1, 1_800_000) == 1 and cost_of(1, 1_799_999) == 0
    assert amount(0) == "0.00" and amount(12_345) == "0.0123" and amount(1_999_999) == "2.00"
