"""Expressions over metrics: names as people log them, the usual rules of arithmetic, and clear refusals."""

import math
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidSpec
from shoal.core.metric_expr import FUNCTIONS, MAX_LENGTH, parse, quote

PLAIN = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow, "neg": operator.neg,
    "abs": abs, "exp": math.exp, "log": math.log, "log2": math.log2, "log10": math.log10, "sqrt": math.sqrt, "min": min, "max": max,
}  # fmt: skip
VALUES = {
    "eval/loss": 3.0,
    "loss": 2.0,
    "tokens/s": 8.0,
    "my metric": 5.0,
    "grad-norm": 4.0,
    "log": 7.0,
    "top-5.acc": 0.5,
    "2d_loss": 6.0,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loss", 2.0), ("eval/loss - loss", 1.0), ("loss-1", None), ("tokens/s / loss", 4.0), ('"my metric" * 2', 10.0), ("grad-norm", 4.0),
        ("-loss ** 2", -4.0), ("2 ** loss ** 2", 16.0), ("1 - 2 - 3", -4.0), ("8 / 4 / 2", 1.0), ("max(loss, eval/loss, 1)", 3.0),
        ("sqrt(grad-norm) + abs(-1.5e0)", 3.5), ("log", 7.0), ("log(1) + log", 7.0), ("top-5.acc", 0.5), ("2d_loss", 6.0), ("(loss)", 2.0),
    ],
)  # fmt: skip
def test_names_and_arithmetic_are_what_people_expect(text, value):
    found = parse(text)
    if value is None:  # a hyphen inside a word belongs to the name
        assert found.names == ["loss-1"]
    else:
        assert found.evaluate(VALUES, PLAIN) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "loss +", "(loss", "loss)", "loss loss", '"open', "min(loss)", "sqrt(1, 2)", "1 ** ", "a ? b", "x" * (MAX_LENGTH + 1), "(" * 100 + "1" + ")" * 100, "-" * 200 + "1"],
)  # fmt: skip
def test_what_is_no_expression_is_refused_with_the_place(text):
    with pytest.raises(InvalidSpec):
        parse(text)


@given(st.text(min_size=1, max_size=40))
def test_any_name_can_be_quoted(name):
    found = parse(quote(name))
    assert found.names == [name] and found.root.kind == "metric"


def test_functions_are_those_that_are_documented():
    assert set(FUNCTIONS) <= set(PLAIN)
