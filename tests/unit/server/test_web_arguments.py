"""Arguments as rows and as a line: whichever way they go, a script gets the same words."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidSpec
from shoal.server.web.drafts.arguments import Kind, Row, join_words, split_line, to_rows, to_words

WORDS = st.lists(
    st.one_of(st.text(min_size=1), st.sampled_from(["--lr", "-v", "--", "-", "--a=b", "-3", "--x=", "1e-4"]))
)


@given(WORDS)
def test_words_become_rows_and_the_same_words_again(words):
    assert to_words(to_rows(words)) == words


@given(WORDS)
def test_words_become_a_line_and_the_same_words_again(words):
    assert split_line(join_words(words)) == words


def test_a_line_is_read_as_names_values_and_switches():
    rows = to_rows(split_line("data --lr 3e-4 --epochs 10 --fp16 --name='two words' --seed -1 --shuffle true -v"))
    assert [(r.name, r.value, r.kind) for r in rows] == [
        ("", "data", "text"),
        ("--lr", "3e-4", "decimal"),
        ("--epochs", "10", "integer"),
        ("--fp16", "", "switch"),
        ("--name=", "two words", "text"),
        ("--seed", "-1", "integer"),
        ("--shuffle", "true", "true/false"),
        ("-v", "", "switch"),
    ]


def test_a_name_without_dashes_gets_them_and_empty_rows_are_left_out():
    rows = [Row(name=" lr ", value="1"), Row(), Row(name=" ", value=""), Row(name="x", value="")]
    assert to_words(rows) == ["--lr", "1", "--x", ""]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Kind.INTEGER, "1.5", "--n: '1.5' is not a whole number."),
        (Kind.DECIMAL, "many", "--n: 'many' is not a number."),
        (Kind.YES_NO, "maybe", "--n: 'maybe' is neither true nor false."),
        (Kind.SWITCH, "x", "--n: a switch takes no value."),
    ],
)
def test_a_value_that_is_not_of_its_kind_is_named(kind, value, said):
    with pytest.raises(InvalidSpec) as caught:
        to_words([Row(name="--n=", value=value, kind=kind)])
    assert caught.value.message == said


def test_a_line_with_an_open_quotation_says_so():
    with pytest.raises(InvalidSpec, match="is not closed"):
        split_line("--name 'two words")


def test_the_line_is_what_a_shell_would_take():
    words = ["--q", "it's; rm -rf $HOME", "*"]
    assert shlex.split(join_words(words)) == words
