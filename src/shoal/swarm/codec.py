"""One byte a value, on a grid of powers of two: small and large layers alike keep three binary digits.

Whatever was once put on the grid stays as it is when it is cut into parts and encoded again, so what rounding took away
is known to the sender, who adds it to its next update. Travels as hivemind's 8-bit message: a codebook and indices.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

torch: Any = import_module("torch")
_quantization: Any = import_module("hivemind.compression.quantization")
_floating: Any = import_module("hivemind.compression.floating")
_base: Any = import_module("hivemind.compression.base")

_TOP = 448.0
"""Largest value of an 8-bit float with 4 bits of exponent."""


def make_codec(name: str) -> Any:
    """The codec of a swarm's `compression`."""
    if name == "int8":
        return EightBit()
    return _floating.ScaledFloat16Compression() if name == "fp16" else _base.NoCompression()


def on_grid(values: Tensor) -> Tensor:
    """The nearest values one byte can say; those that are not finite stay so."""
    scale = _scale(values)
    return (values / scale).to(torch.float8_e4m3fn).to(torch.float32) * scale if scale else values.clone()


class EightBit(_quantization.Uniform8BitQuantization):  # type: ignore[misc]
    """Encodes by `on_grid`; anybody with hivemind can decode it."""

    def quantize(self, tensor: Tensor, allow_inplace: bool = False) -> tuple[Any, Any]:
        scale = _scale(tensor) or 1.0
        codes = (tensor.detach().to(torch.float32) / scale).to(torch.float8_e4m3fn).view(torch.uint8)
        grid = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32) * scale
        return codes.numpy(), grid.numpy()


def _scale(values: Tensor) -> float:
    """A power of two that brings the largest value just below the top; 0 where there is nothing to scale."""
    largest = float(values.detach().abs().max()) if values.numel() else 0.0
    if largest == 0.0 or not math.isfinite(largest):
        return 0.0
    return float(2.0 ** math.ceil(math.log2(largest / _TOP)))
