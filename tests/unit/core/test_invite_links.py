"""Links to a workspace, as people paste them."""

import pytest

from shoal.core.errors import UsageError
from shoal.core.invite_links import invite_link, parse_invite


@pytest.mark.parametrize("base", ["https://shoal.example.org", "http://127.0.0.1:8080", "https://example.org/shoal"])
def test_a_link_gives_back_its_server_and_its_code(base):
    assert parse_invite(f" {invite_link(base + '/', 'shoali_a-B_9')} \n") == (base, "shoali_a-B_9")
    assert parse_invite("shoali_a-B_9") == (None, "shoali_a-B_9")


@pytest.mark.parametrize(
    "text", ["", "https://example.org/", "ftp://x/invite/a", "/invite/a", "https://x/invite/", "https://x/join/a"]
)
def test_what_is_no_invitation_is_refused_with_how_one_looks(text):
    with pytest.raises(UsageError) as refused:
        parse_invite(text)
    assert refused.value.hint
