"""The query language of runs: what it understands, what it refuses, and that what it writes it reads the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidSpec
from shoal.core.run_filter import MAX_TERMS, Term, parse, write
from shoal.core.run_params import params_of, value

TABLE = {
    "": [],
    "  ": [],
    "wide": [Term("", "~", ("wide",))],
    "lr>1e-4": [Term("lr", ">", ("1e-4",))],
    "lr>=-1": [Term("lr", ">=", ("-1",))],
    "tag:ablation status:failed,stopped": [Term("tag", ":", ("ablation",)), Term("status", ":", ("failed", "stopped"))],
    "loss.min<2 user:ada": [Term("loss.min", "<", ("2",)), Term("user", ":", ("ada",))],
    "-tag:old": [Term("tag", ":", ("old",), True)],
    "-wide": [Term("", "~", ("wide",), True)],
    'note~"too slow"': [Term("note", "~", ("too slow",))],
    '"my loss".min<=2': [Term("my loss.min", "<=", ("2",))],
    '"a:b"': [Term("", "~", ("a:b",))],
    'opt!="a,b",c': [Term("opt", "!=", ("a,b", "c"))],
    'x="say \\"hi\\""': [Term("x", "=", ('say "hi"',))],
    "eval/loss.max>0.5": [Term("eval/loss.max", ">", ("0.5",))],
    "url:http://x": [Term("url", ":", ("http://x",))],
}


@pytest.mark.parametrize("text", TABLE)
def test_queries_are_understood(text):
    assert parse(text) == TABLE[text]


@pytest.mark.parametrize("text", [":x", "lr>", "lr> 3", "a:", '"', "-", "= b", "a,b", 'x:"y"z', "!x"])
def test_what_is_unclear_is_refused_with_its_place(text):
    with pytest.raises(InvalidSpec):
        parse(text)


def test_a_query_has_an_end():
    with pytest.raises(InvalidSpec, match="at most"):
        parse("a " * (MAX_TERMS + 1))


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
OPS = st.sampled_from([":", "=", "!=", "<", "<=", ">", ">=", "~"])
TERMS = st.one_of(
    st.builds(Term, st.just(""), st.just("~"), st.tuples(WORDS), st.booleans()),
    st.builds(Term, WORDS, OPS, st.lists(WORDS, min_size=1, max_size=3).map(tuple), st.booleans()),
)


@given(st.lists(TERMS, max_size=5))
def test_what_is_written_is_read_the_same(terms):
    assert parse(write(terms)) == terms


@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text):
    try:
        terms = parse(text)
    except InvalidSpec:
        return
    assert parse(write(terms)) == terms


def test_arguments_and_config_are_parameters_under_one_name():
    entry = ["train.py", "data", "--lr", "3e-4", "--depth=12", "--amp", "--name", "a b", "-x", "-1"]
    found = params_of(entry, {"lr": 0.1, "model": {"width": 64, "act": "gelu"}, "sizes": [1, 2], "none": None})
    assert found == {
        "#1": "data", "amp": True, "depth": 12, "lr": 0.1, "model.act": "gelu", "model.width": 64, "name": "a b",
        "none": None, "sizes": "[1, 2]", "x": -1,
    }  # fmt: skip
    assert list(found) == sorted(found)


@pytest.mark.parametrize(("text", "found"), [("1", 1), ("-2.5", -2.5), ("1e400", "1e400"), ("007", 7), ("nan", "nan")])
def test_values_of_arguments_are_numbers_where_they_are_written_so(text, found):
    assert value(text) == found and type(value(text)) is type(found)
