"""Encoding of values in one byte each, as 8-bit floats with a power-of-two scale.

Small and large layers both keep three mantissa bits. Rounded values do not change when they are split into parts and encoded
again, so the sender knows the rounding error and adds it to its next update. The message is hivemind's 8-bit format: a
codebook and indices. All functions are pure: they are safe in any thread or process.
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
    """Return the codec for a `compression` setting: "int8", "fp16" or "none"."""
    if name == "int8":
        return EightBit()
    return _floating.ScaledFloat16Compression() if name == "fp16" else _base.NoCompression()


def on_grid(values: Tensor) -> Tensor:
    """Return the nearest values that fit in one byte each. Tensors with values that are not finite are returned unchanged."""
    scale = _scale(values)
    return (values / scale).to(torch.float8_e4m3fn).to(torch.float32) * scale if scale else values.clone()


class EightBit(_quantization.Uniform8BitQuantization):  # type: ignore[misc]
    """Codec that rounds as `on_grid` does. Plain hivemind can decode it."""

    def quantize(self, tensor: Tensor, allow_inplace: bool = False) -> tuple[Any, Any]:
        scale = _scale(tensor) or 1.0
        codes = (tensor.detach().to(torch.float32) / scale).to(torch.float8_e4m3fn).view(torch.uint8)
        grid = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32) * scale
        return codes.numpy(), grid.numpy()


def _scale(values: Tensor) -> float:
    """Return the power of two that brings the largest value just below the top; 0 if there is nothing to scale."""
    largest = float(values.detach().abs().max()) if values.numel() else 0.0
    if largest == 0.0 or not math.isfinite(largest):
        return 0.0
    return float(2.0 ** math.ceil(math.log2(largest / _TOP)))
