"""One chunk of an all-reduce: bad parts drop their senders, and the round goes on."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import torch

from shoal.testing.extras import needs

pytestmark = needs("hivemind")
SHAPES = (torch.Size([4]), torch.Size([2]))


@pytest.fixture(autouse=True, scope="module")
def _imports() -> None:
    global BannedException, CompressionInfo, NoCompression, runtime_pb2, Combine, GuardedReducer, BadTensor, open_tensor
    from hivemind.averaging.partition import BannedException
    from hivemind.compression import CompressionInfo, NoCompression
    from hivemind.proto import runtime_pb2

    from shoal.swarm.averaging.reducer import Combine, GuardedReducer
    from shoal.swarm.averaging.wire import BadTensor, open_tensor


def seal(number: int, average: torch.Tensor) -> Any:
    return NoCompression().compress(average, CompressionInfo.from_tensor(average))


async def send(
    reducer: GuardedReducer, sender: int, parts: list[torch.Tensor], weight: float = 1.0
) -> list[torch.Tensor]:
    """Send like a runner: a sender whose part is refused has failed."""
    got = []
    for number, part in enumerate(parts):
        try:
            got.append((await reducer.accumulate_part(sender, number, part, weight=weight))[1])
        except (BadTensor, BannedException):
            reducer.on_sender_failed(sender)
            break
    return got


def reduce(
    parts: list[list[torch.Tensor]], combine: Combine, weights: list[float] | None = None
) -> list[list[torch.Tensor]]:
    async def run() -> list[list[torch.Tensor]]:
        reducer = GuardedReducer(SHAPES, len(parts), combine, seal)
        sends = [send(reducer, n, own, (weights or [1.0] * len(parts))[n]) for n, own in enumerate(parts)]
        return await asyncio.wait_for(asyncio.gather(*sends), 5)

    return asyncio.run(run())


def filled(value: float) -> list[torch.Tensor]:
    return [torch.full(shape, value) for shape in SHAPES]


def test_all_senders_get_one_weighted_mean() -> None:
    got = reduce([filled(1.0), filled(4.0)], Combine("mean"), [2.0, 1.0])
    assert all(torch.equal(part, torch.full(part.shape, 2.0)) for own in got for part in own)
    assert [len(own) for own in got] == [2, 2]


@pytest.mark.parametrize(
    "bad",
    [
        [torch.tensor([1.0, math.nan, 1.0, 1.0]), torch.ones(2)],
        [torch.ones(4), torch.tensor([math.inf, 1.0])],
        [torch.ones(1), torch.ones(2)],
        [torch.ones(4), torch.ones(2), torch.ones(2)],
        [torch.ones(4)],
    ],
    ids=["nan", "inf later", "broadcastable", "too many", "too few"],
)
@pytest.mark.parametrize("aggregation", ["mean", "robust"])
def test_a_bad_sender_neither_ruins_nor_holds_up_the_others(bad: list[torch.Tensor], aggregation: str) -> None:
    async def run() -> list[list[torch.Tensor]]:
        reducer = GuardedReducer(SHAPES, 4, Combine(aggregation), seal)

        async def cut_off() -> list[torch.Tensor]:
            got = await send(reducer, 3, bad)
            reducer.on_sender_failed(3)
            return got

        sends = [send(reducer, n, filled(2.0)) for n in range(3)]
        return (await asyncio.wait_for(asyncio.gather(*sends, cut_off()), 5))[:3]

    for own in asyncio.run(run()):
        assert len(own) == 2
        assert all(torch.isfinite(part).all() for part in own)


@pytest.mark.parametrize("weight", [math.nan, -1.0, 0.0, math.inf])
def test_a_senseless_weight_is_refused(weight: float) -> None:
    got = reduce([filled(1.0), filled(3.0), filled(9.0)], Combine("mean"), [1.0, 1.0, weight])
    assert torch.equal(got[0][0], torch.full((4,), 2.0))
    assert got[2] == []


def test_robust_leaves_the_liar_out_and_names_it() -> None:
    async def run() -> tuple[list[list[torch.Tensor]], dict[int, int]]:
        reducer = GuardedReducer(SHAPES, 5, Combine("robust"), seal)
        values = [1.0, 1.1, 0.9, 1.0, -1000.0]
        got = await asyncio.gather(*(send(reducer, n, filled(value)) for n, value in enumerate(values)))
        return got, reducer.odd

    got, odd = asyncio.run(run())
    assert torch.allclose(got[0][0], torch.ones(4), atol=0.1)
    assert dict(odd) == {4: 2}


def test_clip_cuts_the_long_in_the_mean() -> None:
    got = reduce([filled(1.0), filled(1.0), filled(1000.0)], Combine("mean", clip=2.0))
    assert torch.allclose(got[0][0], torch.full((4,), 4 / 3))


def test_an_average_beyond_what_the_codec_can_say_is_sent_as_it_is() -> None:
    async def run() -> tuple[Any, torch.Tensor]:
        huge = lambda number, average: seal(number, average * 1e38)  # noqa: E731
        reducer = GuardedReducer(SHAPES, 1, Combine("mean"), huge)
        found: tuple[Any, torch.Tensor] = await reducer.accumulate_part(0, 0, torch.full((4,), 1e6))
        return found

    message, average = asyncio.run(run())
    assert torch.equal(open_tensor(message, (4,)), average)
    assert torch.equal(average, torch.full((4,), 1e6))


def tensor_message(**fields: Any) -> Any:
    plain = {"buffer": b"\0" * 16, "size": [4], "dtype": "float32", "compression": runtime_pb2.NONE}
    return runtime_pb2.Tensor(**plain | fields)


def test_an_honest_message_opens() -> None:
    assert torch.equal(open_tensor(tensor_message(), (4,)), torch.zeros(4))


@pytest.mark.parametrize(
    "fields",
    [
        {"size": [1 << 31]},
        {"size": [1 << 31, 1 << 31]},
        {"size": [5]},
        {"dtype": "object"},
        {"dtype": "O"},
        {"dtype": "load"},
        {"dtype": "float64"},
        {"buffer": b""},
        {"buffer": b"\0" * 17},
        {"compression": "UNIFORM_8BIT", "buffer": b"\xff" * 20},
        {"compression": "QUANTILE_8BIT", "buffer": b"\0" * 7},
        {"buffer": b"\x00\x00\xc0\x7f" * 4},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_what_an_envelope_claims_is_not_believed(fields: dict[str, Any]) -> None:
    with pytest.raises(BadTensor):
        open_tensor(tensor_message(**fields))
