from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.store.io.buffers import Buffers, join_adjacent
from shoal.store.io.direct import read_once


def test_memory_is_lent_again_only_when_no_view_of_it_is_left() -> None:
    buffers = Buffers(8192)
    first = buffers.lend(100)
    part = first[10:20]
    first[:] = b"a" * 100
    del first
    second = buffers.lend(100)
    second[:] = b"b" * 100
    assert bytes(part) == b"a" * 10
    del part, second
    third, fourth = buffers.lend(8192), buffers.lend(1)
    assert {bytes(third[:1]), bytes(fourth)} == {b"a", b"b"}


def test_what_is_larger_than_a_buffer_is_lent_too() -> None:
    assert len(Buffers(4096).lend(10_000)) == 10_000


def test_no_more_is_kept_than_was_said() -> None:
    buffers = Buffers(4096, keep=2)
    lent = [buffers.lend(1) for _ in range(5)]
    del lent
    assert len(buffers._free) == 2


def test_neighbours_in_memory_become_one_piece_and_others_stay_as_they_are() -> None:
    memory = Buffers(8192).lend(8192)
    memory[:] = os.urandom(8192)
    pieces = [memory[:100], memory[100:5000], b"apart", memory[6000:], memory[5000:6000]]
    joined = list(join_adjacent(pieces))
    assert [len(piece) for _, piece in joined] == [5000, 5, 2192, 1000]
    assert b"".join(piece for _, piece in joined) == b"".join(pieces)
    assert [address is None for address, _ in joined] == [False, True, False, False]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    ("start", "length"), [(0, 10), (0, 100_001), (4095, 2), (5000, 60_000), (99_990, 500), (200_000, 5), (4096, 0)]
)
def test_any_part_of_a_file_is_read_past_the_cache_as_it_is(
    disk_path: Path, start: int, length: int, cached: bool
) -> None:
    data = os.urandom(100_001)
    path = disk_path / "file"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    if not cached:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert bytes(read_once(fd, length, start, Buffers(1 << 20))) == data[start : start + length]
    os.close(fd)
