"""Format of numbers, times and untrusted text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.shared.format import ago, bar, clean, clean_log, duration, plural, size, timestamp

NOW = datetime(2025, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.04, "0.0 s"),
        (2.34, "2.3 s"),
        (9.97, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86_399, "23 h 59 min"),
        (273_600, "3 d 4 h"),
        (4_000_000, "46 d 7 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "just now"),
        (-2, "just now"),
        (40, "40 s ago"),
        (200, "3 min ago"),
        (7300, "2 h ago"),
        (86_400, "1 day ago"),
        (5 * 86_400, "5 days ago"),
        (40 * 86_400, "2024-12-22"),
        (-3600 * 5, "in 5 h"),
    ],
)
def test_relative_times(seconds: float, text: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == text


def test_times_for_machines_are_utc() -> None:
    assert timestamp(NOW) == "2025-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (1536, "1.5 KiB"), (340 << 20, "340 MiB"), (5 << 30, "5.0 GiB")],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


def test_small_things() -> None:
    assert (plural(1, "node"), plural(2, "node"), plural(0, "file")) == ("1 node", "2 nodes", "0 files")
    assert (bar(0.5, 4), bar(-1, 2), bar(7, 2)) == ("━━╌╌", "╌╌", "━━")


@pytest.mark.parametrize(
    "text", ["\x1b[2Ja", "\x1b]0;title\x07a", "\x1b]8;;http://x\x1b\\a", "\x1bca", "a\r", "\x9b2Ja"]
)
def test_a_name_cannot_steer_the_terminal(text: str) -> None:
    assert clean(text).removeprefix("2J") == "a"


def test_a_log_line_keeps_its_colours_and_nothing_else() -> None:
    assert clean_log("\x1b[31mred\x1b[0m \x1b[2Jgone\x1b]0;t\x07") == "\x1b[31mred\x1b[0m gone\x1b[0m"
    assert clean_log("plain\ttabbed") == "plain\ttabbed"


@given(st.text())
def test_whatever_a_log_line_holds_only_colours_escape(text: str) -> None:
    import re

    left = re.sub(r"\x1b\[[0-9;:]*m", "", clean_log(text))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", left)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", clean(text))
