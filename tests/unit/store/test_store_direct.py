from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from shoal.store.io import direct
from shoal.store.io.buffers import Buffers, address, join_adjacent
from shoal.store.io.direct import BLOCK, DirectWriter
from shoal.store.packfiles.packfile import build_pack


@pytest.mark.parametrize("sizes", [[1], [4096], [4097, 1], [0, 10_000_000, 3], [100] * 500, [8 << 20], [(8 << 20) + 1]])
def test_pieces_of_any_size_arrive_as_they_are(tmp_path: Path, sizes: list[int]) -> None:
    pieces = [os.urandom(n) for n in sizes]
    writer = DirectWriter()
    for name in ("once", "with a used buffer"):
        fd = os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT)
        if not writer.write(fd, pieces):
            pytest.skip("no direct writing on this file system")
        os.close(fd)
        assert (tmp_path / name).read_bytes() == b"".join(pieces)


def test_a_file_system_that_refuses_is_told_and_left_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, views: list[memoryview], at: int) -> None:
        if at:
            raise OSError(22, "Invalid argument")
        real(fd, views, at)

    real = direct._write_blocks
    monkeypatch.setattr(direct, "_write_blocks", refuse)
    fd = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT)
    assert DirectWriter().write(fd, [bytes(9 << 20)]) is False
    assert os.fstat(fd).st_size == 0
    os.write(fd, b"still works, unaligned")
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == b"still works, unaligned"


@pytest.mark.parametrize("seed", range(5))
def test_what_lies_in_memory_as_it_will_in_the_file_is_written_from_there(tmp_path: Path, seed: int) -> None:
    noise, windows = random.Random(seed), Buffers(8 << 20)
    payloads: list[memoryview] = []
    for _ in range(5):
        window, at = windows.lend(8 << 20), noise.randint(0, 9_000)
        window[:] = noise.randbytes(1 << 20) * 8
        for _ in range(noise.randint(1, 4)):
            end = at + noise.randint(1, 1_500_000)
            payloads.append(window[at:end])
            at = end + noise.choice([0, 0, 37])
        payloads.append(memoryview(noise.randbytes(noise.randint(0, 50_000))))
    _, entries, pieces = build_pack([(f"{n:064x}", 0, p) for n, p in enumerate(payloads)], align=BLOCK)
    fd = os.open(tmp_path / "pack", os.O_WRONLY | os.O_CREAT)
    if not DirectWriter().write(fd, pieces):
        pytest.skip("no direct writing on this file system")
    os.close(fd)
    written = (tmp_path / "pack").read_bytes()
    assert written == b"".join(pieces)
    for entry in entries:
        assert written[entry.offset : entry.offset + entry.length] == payloads[int(entry.hash, 16)]
        start = address(payloads[int(entry.hash, 16)])
        assert start is None or entry.length < 128 << 10 or (start - entry.offset) % BLOCK == 0
    assert len(written) < sum(map(len, payloads)) + 5 * 5 * BLOCK + 10_000


def test_neighbours_in_memory_are_joined_and_nothing_else() -> None:
    window = Buffers(100_000).lend(100_000)
    window[:] = os.urandom(100_000)
    pieces = [window[:10], window[10:500], b"constant", window[500:600], window[601:700], bytearray(b"own"), b""]
    joined = [bytes(view) for _, view in join_adjacent(pieces)]
    assert joined == [window[:500], b"constant", window[500:600], window[601:700], b"own", b""]


def test_a_buffer_that_another_thread_takes_first_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    class Contested(list[object]):
        """Free buffers of which another thread takes the last one right after this thread has seen it."""

        def __bool__(self) -> bool:
            found = len(self) > 0
            self.clear()
            return found

        def pop(self, *_: object) -> object:
            self.clear()
            return super().pop()

    writer = DirectWriter()
    for name in ("first", "second"):
        fd = os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT)
        if not writer.write(fd, [b"a" * 5000]):
            pytest.skip("no direct writing on this file system")
        os.close(fd)
        assert (tmp_path / name).read_bytes() == b"a" * 5000
        writer._free = Contested(writer._free)  # type: ignore[assignment]
