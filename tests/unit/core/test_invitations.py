"""The token in a join link: checked by whoever holds it, without asking anyone."""

import sys

import pytest

from shoal.core.errors import InvalidSpec, KeyExpired, MissingExtra
from shoal.core.ids import new_id
from shoal.core.invitations import Invitation, check_time, link_of, new_key, seal, split_link, unseal
from shoal.core.swarm import clock_problem, moved, tcp_of, version_problem

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def made():
    private, public = new_key()
    invitation = Invitation(new_id("inv"), 2_000_000_000, public)
    return invitation, seal(invitation, private)


def test_a_token_says_who_made_it_and_until_when(made):
    invitation, token = made
    assert unseal(token) == invitation


@pytest.mark.parametrize("at", [7, 20, 60, 100, 150, -1])
def test_a_token_with_one_letter_changed_is_damaged(made, at):
    _, token = made
    changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at:][1:]
    with pytest.raises(InvalidSpec, match="damaged"):
        unseal(changed)


def test_a_token_that_was_cut_off_is_damaged(made):
    for length in (8, 50, len(made[1]) - 1):
        with pytest.raises(InvalidSpec, match="damaged"):
            unseal(made[1][:length])


def test_a_token_signed_by_another_key_is_damaged(made):
    other, _ = new_key()
    with pytest.raises(InvalidSpec, match="damaged"):
        unseal(seal(made[0], other))


def test_a_machine_without_the_extra_is_told_what_to_install(made, monkeypatch):
    for module in ("cryptography.hazmat.primitives.asymmetric", "cryptography.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as told:
        unseal(made[1])
    assert "shoal-train[swarm]" in told.value.hint


@pytest.mark.parametrize("text", ["", "hello", "shoalk_abc", "shoalw_", "shoalw_ä", "shoalw_../../x"])
def test_what_is_no_link_is_said_to_be_none(text):
    with pytest.raises(InvalidSpec, match="not a link") as told:
        unseal(text)
    assert "shoal swarm invite" in told.value.hint


def test_a_token_has_its_time(made):
    check_time(made[0], 1_999_999_999)
    with pytest.raises(KeyExpired, match="2033-05-18 03:33 UTC") as told:
        check_time(made[0], 2_000_000_001)
    assert "shoal swarm invite" in told.value.hint


def test_a_link_is_a_server_and_a_token():
    assert split_link("https://a.example:8443/join/shoalw_x\n") == ("https://a.example:8443", "shoalw_x")
    assert split_link("<http://a.example/shoal/join/shoalw_x/>") == ("http://a.example/shoal", "shoalw_x")
    assert split_link("shoalw_x") == (None, "shoalw_x")
    assert split_link(link_of("http://a.example/shoal/", "shoalw_x")) == ("http://a.example/shoal", "shoalw_x")
    private = link_of("https://10.0.0.5:8443", "shoalw_x", "sha256:4f0c")
    assert private == "https://10.0.0.5:8443/join/shoalw_x#sha256:4f0c"
    assert (
        split_link(private) == ("https://10.0.0.5:8443", "shoalw_x")
        and split_link("shoalw_x#sha256:4f")[1] == "shoalw_x"
    )
    for other in ("ftp://a/join/shoalw_x", "https://a.example/shoalw_x", "https:///join/x"):
        with pytest.raises(InvalidSpec, match="not a link"):
            split_link(other)


def test_an_address_is_a_host_and_a_port():
    assert tcp_of("/ip4/10.0.0.1/tcp/4001/p2p/Qm") == ("10.0.0.1", 4001)
    assert tcp_of("/dns4/a.example/tcp/80") == ("a.example", 80)
    assert tcp_of("/ip4/10.0.0.1/udp/4001/quic") is tcp_of("nonsense") is tcp_of("/ip4/1.2.3.4/tcp/99999") is None


def test_a_peer_may_be_tried_at_another_host():
    assert moved("/ip4/10.0.0.1/tcp/4001/p2p/Qm", "203.0.113.9") == "/ip4/203.0.113.9/tcp/4001/p2p/Qm"
    assert moved("/ip4/10.0.0.1/tcp/4001/p2p/Qm", "a.example") == "/dns/a.example/tcp/4001/p2p/Qm"
    assert moved("/ip4/10.0.0.1/tcp/4001", "2001:db8::1") == "/ip6/2001:db8::1/tcp/4001"
    assert moved("/ip4/10.0.0.1/udp/4001", "a") is None


def test_clocks_and_versions_are_told_apart():
    assert clock_problem(-29) is None
    assert "3600 s behind" in clock_problem(-3600)
    assert "3600 s ahead of" in clock_problem(3600)
    assert version_problem("s", "0.1.7", "0.1.0") is None
    assert "0.2.0" in version_problem("s", "0.2.0", "0.1.0")
