"""Sizes as typed and as shown."""

import pytest

from shoal.core.errors import UsageError
from shoal.core.sizes import describe_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 * 10**6), ("16G", 16 * 10**9), ("1.5tb", 1_500 * 10**9), (" 8 GiB ", 8 << 30), ("2000k", 2 * 10**6)],
)
def test_a_size_is_read_with_its_unit(text, size):
    assert parse_size(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "16", "lots", "-1G", "1k", "9999999T", "1e3G", "16 G B"])
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="--memory"):
        parse_size(text, "--memory")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (16_200_000_000, "16.2 GB"), (16 * 10**9, "16 GB")]
)
def test_a_size_is_shown_with_one_decimal_at_most(count, text):
    assert describe_size(count) == text
