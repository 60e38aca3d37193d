"""Fingerprint of the contents of tensors, the same in every process. Needs torch only."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterable

import torch


def digest(tensors: Iterable[torch.Tensor]) -> int:
    """Return a CRC of shapes, types and bytes, in order. Tensors that are not on the CPU are copied."""
    crc = 0
    for tensor in tensors:
        plain = tensor.detach().to("cpu").contiguous()
        crc = zlib.crc32(f"{tuple(plain.shape)} {plain.dtype}".encode(), crc)
        count = plain.numel() * plain.element_size()
        if count:
            crc = zlib.crc32((ctypes.c_char * count).from_address(plain.data_ptr()), crc)
    return crc
