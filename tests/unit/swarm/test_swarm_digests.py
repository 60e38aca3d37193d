"""Announced digests: what is sent must be what was announced, and an earlier update is recognised."""

from __future__ import annotations

import pytest
import torch

from shoal.swarm.averaging.digests import SeenUpdates, announced_digests, digest, digests
from shoal.testing.extras import needs

pytestmark = needs("hivemind")


def random(seed: int, size: int = 1000) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("codec", ["int8", "none"])
def test_what_the_reducer_reads_has_the_digest_that_the_sender_announced(codec: str) -> None:
    from hivemind.compression import CompressionInfo

    from shoal.swarm.averaging.codec import make_codec, on_grid
    from shoal.swarm.averaging.wire import open_tensor

    update = random(1) * torch.logspace(-6, 3, 1000)
    update[::7] = -0.0
    sent = on_grid(update) if codec == "int8" else update
    announced = digests(sent, 96)
    for number, part in enumerate(sent.split(96)):
        message = make_codec(codec).compress(part, CompressionInfo.from_tensor(part))
        assert digest(open_tensor(message)) == announced[number]


def sends(*updates: torch.Tensor) -> dict[str, dict[str, list[int]]]:
    return {f"Q{n}": {"parts": digests(update, 100)} for n, update in enumerate(updates)}


def test_an_update_of_an_earlier_round_is_recognised_whoever_sends_it() -> None:
    seen = SeenUpdates()
    assert not seen.see("1", sends(random(0), random(1), random(2))).repeated
    found = seen.see("2", sends(random(10), random(2), random(12)))
    assert found.repeated == {"Q1"}
    assert found.problem("Q1", 0, random(2)[:100]) == "it is from an earlier round"
    changed = random(0)
    changed[:300] += 1.0  # most of it is old
    assert seen.see("3", sends(changed)).repeated == {"Q0"}


def test_what_was_not_announced_is_refused() -> None:
    found = SeenUpdates().see("1", sends(random(0)))
    assert found.problem("Q0", 3, random(0)[300:400]) is None
    for sender, number, part in (("Q0", 3, random(1)[:100]), ("Q0", 99, random(0)[:100]), ("Q9", 0, random(0)[:100])):
        assert found.problem(sender, number, part) == "it is not what the peer announced"


def test_the_second_exchange_of_a_round_may_repeat_the_first() -> None:
    seen = SeenUpdates()
    first = sends(random(0), random(1))
    assert not seen.see("1", first).repeated and not seen.see("1", first).repeated
    assert seen.see("2", first).repeated == {"Q0", "Q1"}


def test_updates_of_zeros_are_not_taken_for_repeated_ones() -> None:
    seen, nothing = SeenUpdates(), sends(torch.zeros(500))
    assert digests(-torch.zeros(200), 100) == [0, 0]
    assert not seen.see("1", nothing).repeated and not seen.see("2", nothing).repeated


@pytest.mark.parametrize("sent", [None, {}, {"parts": "x"}, {"parts": [1, "x"]}, {"parts": [1] * 100_000}])
def test_senseless_announcements_are_none(sent: object) -> None:
    assert announced_digests(sent) == []
    assert not SeenUpdates().see("1", {"Q0": sent}).repeated
