"""docs/reference/python.md: all public names, with what their docstrings say."""

import importlib
import re

import pytest
from generator import python

import shoal
from shoal.testing.each import check_each


@pytest.fixture(scope="module")
def page():
    return python.page()


def test_every_public_name_has_its_place(page):
    shown = set(re.findall(r"^### (\S+)$", page, re.MULTILINE))
    functions = {name for name, home in shoal._PUBLIC.items() if home != f"shoal.{name}"}
    check_each(functions, lambda name: _has(shown, f"shoal.{name}"))
    api = importlib.import_module("shoal.api")
    check_each(set(api._HOMES) - {"connect"}, lambda name: _has(shown, f"shoal.api.{name}"))
    assert {"shoal.train.Trainer", "shoal.integrations.hf.ShoalCallback", "shoal.data.stream"} <= shown


def _has(shown, name):
    assert name in shown, "not in the page"


def test_methods_arguments_and_examples_are_shown(page):
    text = page.partition("#### Job.wait\n")[2].partition("\n#### ")[0]
    assert "job.wait(timeout_s: float | None = None) -> Job" in text
    assert "- `timeout_s`: longest time to wait in seconds" in text
    assert ">>> space.run(" in text and "Returns: the job itself." in text
    assert "```python\nshoal.api.Job(" not in page, "its constructor is not for users"
    assert "#### Job._" not in page
    assert page.count("```") % 2 == 0
