"""Parsing of what people type."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from shoal.cli.shared.parse import parse_duration, parse_nodes, parse_pairs, parse_since
from shoal.core.errors import UsageError

NOW = datetime(2025, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("8h", 28_800),
        ("2d", 172_800),
        ("1h30m", 5400),
        ("90", 90),
        ("1.5h", 5400),
        (" 5 MIN ", 300),
    ],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert parse_duration(text, "--x") == seconds


@pytest.mark.parametrize("text", ["", "h", "5", "45", "5x", "-5m", "0", "0s", "1h-2m", "nan", "inf", "99999d", "5m5"])
def test_what_is_not_a_length_of_time(text: str) -> None:
    with pytest.raises(UsageError, match="--x"):
        parse_duration(text, "--x")


def test_since_takes_both_a_length_and_a_moment() -> None:
    assert parse_since("5m", NOW) == NOW - timedelta(minutes=5)
    assert parse_since("2025-01-31T11:00:00Z", NOW) == NOW - timedelta(hours=1)
    assert parse_since("2025-01-31T12:00:00+01:00", NOW) == NOW - timedelta(hours=1)


@pytest.mark.parametrize("text", ["yesterday", "2025-13-01", "5 parsecs", ""])
def test_since_says_how_it_should_look(text: str) -> None:
    with pytest.raises(UsageError, match="neither") as caught:
        parse_since(text, NOW)
    assert "5m" in (caught.value.hint or "")


def test_nodes() -> None:
    assert (parse_nodes("2"), parse_nodes("1:4")) == ((2, 2), (1, 4))


@pytest.mark.parametrize("text", ["0", "-1", "a", "4:1", "1:", ":4", "1:2:3", "1.5", "0:4"])
def test_impossible_nodes(text: str) -> None:
    with pytest.raises(UsageError, match="--nodes"):
        parse_nodes(text)


def test_pairs_split_at_the_first_equals_sign() -> None:
    given = ["A=1", "B=", "C=x=y", "_d= spaces --and --flags"]
    assert parse_pairs(given, "--env", "N=V") == {"A": "1", "B": "", "C": "x=y", "_d": " spaces --and --flags"}
    assert parse_pairs(None, "--env", "N=V") == {}


@pytest.mark.parametrize("item", ["novalue", "=x", "1A=x", "A B=x", "A-B=hunter2"])
def test_a_bad_pair_is_refused_without_repeating_its_value(item: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pairs([item], "--env", "NAME=VALUE")
    assert "hunter2" not in caught.value.message


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="--env A is given twice"):
        parse_pairs(["A=1", "A=2"], "--env", "N=V")
