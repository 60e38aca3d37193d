"""`check_each`: one failure that names everything that was wrong."""

import pytest

from shoal.testing.each import check_each


def test_everything_that_is_wrong_is_named_once_all_were_checked():
    seen = []

    def check(number):
        seen.append(number)
        assert number % 2, "even"

    with pytest.raises(AssertionError) as error:
        check_each([1, 2, 3, 4], check)
    assert seen == [1, 2, 3, 4]
    text = str(error.value)
    assert "2 of 4 are wrong" in text
    assert "2: even" in text and "4: even" in text and "3:" not in text


def test_an_unexpected_exception_counts_and_does_not_end_the_rest():
    def check(text):
        int(text)

    with pytest.raises(AssertionError, match="x: ValueError"):
        check_each(["1", "x", "2"], check)


def test_an_empty_list_is_a_failure():
    with pytest.raises(AssertionError, match="nothing to check"):
        check_each([], print)
