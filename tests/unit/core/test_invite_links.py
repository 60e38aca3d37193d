"""Links to a workspace, as people paste them."""

import pytest

from shoal.core.errors import UsageError
from shoal.core.invite_links import Invite, fingerprint_in, invite_link, parse_invite


@pytest.mark.parametrize("base", ["https://shoal.example.org", "http://127.0.0.1:8080", "https://example.org/shoal"])
def test_a_link_gives_back_its_server_and_its_code(base):
    assert parse_invite(f" {invite_link(base + '/', 'shoali_a-B_9')} \n") == Invite(base, "shoali_a-B_9")
    assert parse_invite("shoali_a-B_9") == Invite(None, "shoali_a-B_9")


def test_a_link_names_the_private_ca_in_the_part_that_is_not_sent():
    link = invite_link("https://10.0.0.5:8443", "shoali_a-B_9", "sha256:4f0c")
    assert link == "https://10.0.0.5:8443/invite/shoali_a-B_9#sha256:4f0c"
    assert parse_invite(f"<{link}>") == Invite("https://10.0.0.5:8443", "shoali_a-B_9", "sha256:4f0c")
    assert parse_invite("shoali_a-B_9#sha256:4f0c") == Invite(None, "shoali_a-B_9", "sha256:4f0c")
    assert fingerprint_in("https://example.org/invite/a#top") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#sha256:4f",
        "https://example.org/",
        "ftp://x/invite/a",
        "/invite/a",
        "https://x/invite/",
        "https://x/join/a",
    ],
)
def test_what_is_no_invitation_is_refused_with_how_one_looks(text):
    with pytest.raises(UsageError) as refused:
        parse_invite(text)
    assert refused.value.hint
