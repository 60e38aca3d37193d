"""Writer of torch's file format that releases the interpreter lock while it copies data; torch.load reads the files.

torch.save holds the lock while it copies, and the training thread would wait. Here the data goes from the tensors' memory
to the file with os.write and is hashed on the way. The archive is a plain zip (stored, 64-byte aligned, zip64 if needed).
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import pickle
import struct
import sys
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core import system

torch: Any = import_module("torch")

_PIECE = 16 << 20
_ALIGN = 64
_BIG = 0xFFFFFFFF


def write_archive(path: Path, value: Any) -> dict[str, Any]:
    """Write `value` (tensors on the CPU) to a new file and sync it. Return its size and hash."""
    with Output(path) as out:
        append_archive(out, value, path.stem)
        return out.finish()


def append_archive(out: Output, value: Any, folder: str = "archive") -> list[int]:
    """Append an archive to a file that may hold others. Return where in the file the data of each storage begins."""
    pickled, storages = _pickle(value)
    zipped = _Zip(out)
    zipped.add(f"{folder}/data.pkl", memoryview(pickled))
    zipped.add(f"{folder}/byteorder", memoryview(sys.byteorder.encode()))
    begins = [zipped.add(f"{folder}/data/{key}", _memory(storage)) for key, storage in enumerate(storages)]
    zipped.add(f"{folder}/version", memoryview(b"3\n"))
    zipped.end()
    return begins


def _pickle(value: Any) -> tuple[bytes, list[Any]]:
    """Pickle as torch.save does: the storages are replaced by numbers and returned separately."""
    numbers: dict[int, int] = {}
    storages: list[Any] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> Any:
            if isinstance(item, torch.storage.TypedStorage):
                storage, kind = item._untyped_storage, getattr(torch, item._pickle_storage_type())
                count = item._size()
            elif isinstance(item, torch.UntypedStorage):
                storage, kind, count = item, torch.UntypedStorage, item.nbytes()
            else:
                return None
            if storage._cdata not in numbers:
                numbers[storage._cdata] = len(storages)
                storages.append(storage)
            return ("storage", kind, str(numbers[storage._cdata]), "cpu", count)

    out = io.BytesIO()
    Pickler(out, protocol=2).dump(value)
    return out.getvalue(), storages


def _memory(storage: Any) -> memoryview:
    size = storage.nbytes()
    if not size:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(storage.data_ptr())).cast("B")


class Output:
    """New file that is hashed while it is written. `finish` syncs it; leaving the context closes it."""

    def __init__(self, path: Path):
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.CLOEXEC, 0o644)
        self._digest = hashlib.blake2b()
        self.at = 0
        """Bytes written so far."""

    def write(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self.at += len(data)

    def finish(self) -> dict[str, Any]:
        """Sync the file; return its size and hash."""
        os.fsync(self._fd)
        return {"size": self.at, "blake2b": self._digest.hexdigest()}

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class _Zip:
    """Minimal zip writer: sizes and checksums are known before an entry is written, so nothing is rewritten."""

    def __init__(self, out: Output):
        self._out, self._base = out, out.at
        self._directory: list[bytes] = []

    @property
    def _at(self) -> int:
        return self._out.at - self._base

    def add(self, name: str, data: memoryview) -> int:
        """Append an entry; return where in the file its data begins."""
        size, start, crc = len(data), self._at, 0
        for piece in _pieces(data):
            crc = zlib.crc32(piece, crc)
        encoded = name.encode()
        sizes = struct.pack("<HHQQ", 1, 16, size, size) if size >= _BIG else b""
        shown = min(size, _BIG)
        end = self._out.at + 30 + len(encoded) + len(sizes) + 4
        padding = struct.pack("<2sH", b"FB", -end % _ALIGN) + b"Z" * (-end % _ALIGN)
        fields = (45 if sizes else 20, 0x800, 0, 0, 0x21, crc, shown, shown, len(encoded))
        self._out.write(struct.pack("<IHHHHHIIIHH", 0x04034B50, *fields, len(sizes) + len(padding)))
        self._out.write(encoded + sizes + padding)
        begins = self._out.at
        for piece in _pieces(data):
            self._out.write(piece)
        big = b"".join(struct.pack("<Q", n) for n in ((size, size) if sizes else ()))
        big += struct.pack("<Q", start) if start >= _BIG else b""
        extra = struct.pack("<HH", 1, len(big)) + big if big else b""
        central = struct.pack("<IHHHHHHIIIH", 0x02014B50, 45 if big else 20, *fields)
        central += struct.pack("<HHHHII", len(extra), 0, 0, 0, 0, min(start, _BIG))
        self._directory.append(central + encoded + extra)
        return begins

    def end(self) -> None:
        """Append the directory of the entries."""
        start, count = self._at, len(self._directory)
        self._out.write(b"".join(self._directory))
        size = self._at - start
        if start >= _BIG or count >= 0xFFFF:
            end = self._at
            self._out.write(struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, start))
            self._out.write(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        few = min(count, 0xFFFF)
        self._out.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, few, few, min(size, _BIG), min(start, _BIG), 0))


def _pieces(data: memoryview) -> list[memoryview]:
    return [data[i : i + _PIECE] for i in range(0, len(data), _PIECE)]
