"""Positions of tensors in checkpoint files. Each tensor is cut separately, so that unchanged ones are not stored again.

Only headers are read, with limits, and nothing in them is trusted: an invalid file counts as one without tensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

from shoal.store.files import read_exact

_SAFETENSORS_HEADER = 100 << 20
"""Maximum header size of the safetensors format."""
_ZIP_DIRECTORY = 64 << 20
_ZIP_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_EOCD = struct.Struct("<4s4H2IH")
_EOCD64_AT = struct.Struct("<4sIQI")
_EOCD64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_WIDE = 0xFFFFFFFF


def tensor_bounds(fd: int, size: int, name: str) -> list[int]:
    """Return the sorted offsets at which tensors begin and end; an empty list for other files."""
    lower = name.lower()
    try:
        if lower.endswith(".safetensors"):
            found = list(_safetensors(fd, size))
        elif lower.endswith(_ZIP_SUFFIXES):
            found = list(_torch_zip(fd, size))
        else:
            return []
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, OSError, struct.error):
        return []
    return sorted({at for at in found if 0 < at < size})


def _safetensors(fd: int, size: int) -> Iterator[int]:
    (length,) = struct.unpack("<Q", read_exact(fd, 8, 0))
    if length > min(size - 8, _SAFETENSORS_HEADER):
        return
    data = 8 + length
    yield data
    for name, tensor in json.loads(read_exact(fd, length, 8)).items():
        if name != "__metadata__":
            yield from (data + int(at) for at in tensor["data_offsets"])


def _torch_zip(fd: int, size: int) -> Iterator[int]:
    if read_exact(fd, 4, 0) != b"PK\x03\x04":
        return
    start, length = _directory(fd, size)
    if length > _ZIP_DIRECTORY:
        return
    directory = read_exact(fd, length, start)
    at = 0
    while at + _ENTRY.size <= len(directory):
        fields = _ENTRY.unpack_from(directory, at)
        packed, plain, name_length, extra_length, comment_length = *fields[8:10], *fields[10:13]
        extra = directory[at + _ENTRY.size + name_length :][:extra_length]
        at += _ENTRY.size + name_length + extra_length + comment_length
        if fields[0] != b"PK\x01\x02" or fields[4] != 0:
            continue  # a cut does not help compressed entries
        packed, header = _wide(plain, packed, fields[16], extra)
        local = _LOCAL.unpack(read_exact(fd, _LOCAL.size, header))
        begin = header + _LOCAL.size + local[9] + local[10]
        yield begin
        yield begin + packed


def _directory(fd: int, size: int) -> tuple[int, int]:
    """Return (offset, length) of a zip's central directory."""
    tail_at = max(0, size - 65_557)
    tail = read_exact(fd, size - tail_at, tail_at)
    at = tail.rfind(b"PK\x05\x06")
    fields = _EOCD.unpack_from(tail, at)
    length, start = fields[5], fields[6]
    if start != _WIDE and length != _WIDE and fields[4] != 0xFFFF:
        return start, length
    _, _, at64, _ = _EOCD64_AT.unpack_from(tail, at - _EOCD64_AT.size)
    wide = _EOCD64.unpack(read_exact(fd, _EOCD64.size, at64))
    return wide[9], wide[8]


def _wide(plain: int, packed: int, header: int, extra: bytes) -> tuple[int, int]:
    """Return (packed size, header offset), from the zip64 field if the 32-bit fields are full."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == 1:
            values = iter(struct.unpack_from(f"<{length // 8}Q", extra, 4))
            if plain == _WIDE:
                next(values)
            packed = next(values) if packed == _WIDE else packed
            header = next(values) if header == _WIDE else header
            break
        extra = extra[4 + length :]
    return packed, header
