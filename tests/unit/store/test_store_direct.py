from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.store import direct
from shoal.store.direct import DirectWriter


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
    def refuse(fd: int, view: memoryview, at: int) -> None:
        if at:
            raise OSError(22, "Invalid argument")
        real(fd, view, at)

    real = direct._write_blocks
    monkeypatch.setattr(direct, "_write_blocks", refuse)
    fd = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT)
    assert DirectWriter().write(fd, [bytes(9 << 20)]) is False
    assert os.fstat(fd).st_size == 0
    os.write(fd, b"still works, unaligned")
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == b"still works, unaligned"
