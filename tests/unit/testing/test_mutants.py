"""The planted bugs of ./scripts/mutants fit the tree as it is, and its verdicts are strict. No mutant is run here."""

import re
import sys
from pathlib import Path

import pytest

from shoal.testing.each import check_each

ROOT = Path(__file__).resolve().parents[3]
SUBJECTS = ("loop", "fsync", "workspace", "retention", "fenced", "policy", "secret", "ssrf", "gang", "quota")


@pytest.fixture(scope="module")
def mutants():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import mutants

        yield mutants
    finally:
        sys.path.remove(str(ROOT / "scripts"))
        for name in [name for name in sys.modules if name == "mutants" or name.partition(".")[0] == "bugs"]:
            del sys.modules[name]


def test_every_mutant_has_exactly_one_place_and_leaves_python(mutants):
    def check(mutant):
        changed = mutants.mutated((ROOT / mutant.file).read_text(encoding="utf-8"), mutant)
        compile(changed, mutant.file, "exec")
        assert mutant.old != mutant.new

    check_each(mutants.MUTANTS, check)


def test_every_mutant_names_tests_that_exist_in_its_tier(mutants):
    def check(mutant):
        for test in mutant.tests:
            path, _, name = test.partition("::")
            text = (ROOT / path).read_text(encoding="utf-8")
            assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE), f"there is no {test}"
            assert path.startswith(("tests/unit/", "tests/contract/")) == (mutant.tier == "fast")

    check_each(mutants.MUTANTS, check)


def test_names_tell_mutants_apart_and_the_great_subjects_have_one(mutants):
    names = [mutant.name for mutant in mutants.MUTANTS]
    assert len(set(names)) == len(names) >= 22
    for subject in SUBJECTS:
        assert any(subject in name for name in names), subject


class Copy:
    """Stands for a copy of the tree in which pytest says what the test says."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def test(self, tests):
        return self.answers.pop(0)

    def planted(self, mutant):
        import contextlib

        return contextlib.nullcontext()


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([(0, "1 passed"), (1, "FAILED tests/a.py::b[1 - 2] - AssertionError")], "tests/a.py::b"),
        ([(0, "1 passed"), (0, "1 passed")], "SURVIVED"),
        ([(0, "1 passed"), (1, "ERROR tests/a.py::b - a fixture")], "ERROR: pytest ended with 1 and no failed test"),
        ([(0, "1 passed"), (2, "ERROR tests/a.py")], "ERROR: pytest ended with 2 and no failed test"),
        ([(5, "no tests ran")], "ERROR: without the mutant its tests end with 5"),
        ([(1, "FAILED tests/a.py::b")], "ERROR: without the mutant its tests end with 1"),
    ],
)
def test_a_mutant_is_caught_only_by_a_test_that_passes_without_it_and_fails_with_it(mutants, answers, text):
    found = mutants.Laboratory(1)._judge(Copy(*answers), mutants.MUTANTS[0])
    assert found.text.startswith(text)
    assert (found.caught_by is not None) == (not text.startswith(("ERROR", "SURVIVED")))


def test_tests_without_a_mutant_are_run_once_per_selection(mutants):
    copy, laboratory = Copy((0, "1 passed"), (0, "1 passed"), (0, "1 passed")), mutants.Laboratory(1)
    for _ in range(2):
        assert laboratory._judge(copy, mutants.MUTANTS[0]).text == "SURVIVED"
    assert copy.answers == []
