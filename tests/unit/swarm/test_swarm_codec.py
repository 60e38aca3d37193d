"""One byte a value: what is lost is small, known to the sender, and lost only once."""

from __future__ import annotations

import pytest

from shoal.testing.extras import needs

pytestmark = needs("torch", "hivemind")


@pytest.fixture(autouse=True, scope="module")
def _imports():
    global torch, CompressionInfo, deserialize_torch_tensor, EightBit, make_codec, on_grid
    import torch
    from hivemind.compression import CompressionInfo, deserialize_torch_tensor

    from shoal.swarm.averaging.codec import EightBit, make_codec, on_grid


def through(codec, values):
    return deserialize_torch_tensor(codec.compress(values, CompressionInfo.from_tensor(values)))


def mixed(size: int = 50_000):
    """Layers of very different size in one vector."""
    return torch.randn(size, generator=torch.Generator().manual_seed(3)) * torch.logspace(-3, 1, size)


def test_small_and_large_values_alike_keep_three_binary_digits():
    values = mixed()
    error = (on_grid(values) - values).abs()
    far_from_zero = values.abs() > values.abs().max() / 10_000
    assert float((error / values.abs())[far_from_zero].max()) <= 1 / 16


def test_what_is_on_the_grid_passes_the_wire_unchanged_however_it_is_cut():
    values = on_grid(mixed())
    for size in (50_000, 1_000, 77):
        parts = values.split(size)
        assert torch.equal(torch.cat([through(EightBit(), part) for part in parts]), values)


def test_a_message_has_one_byte_a_value_and_a_codebook():
    values = mixed(10_000)
    message = EightBit().compress(values, CompressionInfo.from_tensor(values))
    assert len(message.buffer) == 10_000 + 4 * 256 + 8


def test_zeros_and_the_very_small_survive():
    assert torch.equal(through(EightBit(), torch.zeros(100)), torch.zeros(100))
    tiny = torch.full((100,), 1e-30)
    assert torch.allclose(on_grid(tiny), tiny, rtol=1 / 16)


def test_every_compression_of_the_settings_has_a_codec():
    values = mixed(1000)
    for name, close in (("int8", 1 / 15), ("fp16", 1e-2), ("none", 0.0)):
        found = through(make_codec(name), values)
        assert float((found - values).abs().max()) <= close * float(values.abs().max()) + 1e-9
