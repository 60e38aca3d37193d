"""Scripts with lines torn out: whatever is left, the check says something or nothing, and instrument keeps all of it or refuses."""

from __future__ import annotations

import os
import random
from pathlib import Path

from idioms import IDIOMS
from looking import look
from planted import DDP, NETMIND, PLAIN, SDK, TWO

from shoal.check.instrument.writer import instrument
from shoal.core.errors import Internal, ShoalError

ROUNDS = int(os.environ.get("SHOAL_ROUNDS", "20"))
SCRIPTS = [SDK, DDP, NETMIND, PLAIN, *(text for files in IDIOMS.values() for text in files.values())]


def torn(text: str, dice: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    for _ in range(dice.randint(1, 4)):
        del lines[dice.randrange(len(lines))]
    return "".join(lines)


def test_no_script_is_too_torn_to_be_looked_at(tmp_path: Path) -> None:
    dice = random.Random(7)
    for _ in range(ROUNDS):
        text = torn(dice.choice(SCRIPTS), dice)
        for finding in look(tmp_path, {"train.py": text}, **TWO | {"args": ("--lr", "1")}).findings:
            assert 1 <= finding.line <= len(text.splitlines()) + 1, finding


def test_a_torn_script_is_instrumented_whole_or_refused() -> None:
    dice = random.Random(11)
    written = 0
    for _ in range(5 * ROUNDS):
        text = torn(dice.choice([DDP, PLAIN, *SCRIPTS[4:]]), dice)
        try:
            done = instrument("train.py", text).text
        except Internal as error:
            raise AssertionError(f"{error}\n{text}") from None
        except ShoalError as error:
            assert error.hint, error.message
            continue
        left = iter(done)
        assert all(letter in left for letter in text)
        written += 1
    assert written >= ROUNDS // 4
