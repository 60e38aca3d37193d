"""Every threat T1 to T26 has a row in docs/explanation/security.md, and the tests that a row names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/explanation/security.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| T\d", line)]


def test_every_threat_has_a_row() -> None:
    found: set[int] = set()
    for row in ROWS:
        names = row.split("|")[1]
        numbers = [int(n) for n in re.findall(r"T(\d+)", names)]
        found.update(range(numbers[0], numbers[-1] + 1) if "–" in names else numbers)
    assert found == set(range(1, 27))


def test_the_tests_that_a_row_names_exist_and_a_closed_row_names_one() -> None:
    for row in ROWS:
        named = re.findall(r"`((?:tests/|pyproject)[^`]+)`", row)
        assert all((ROOT / name).exists() for name in named), row
        assert named or row.split("|")[2].strip().startswith(("open", "partly")), row
