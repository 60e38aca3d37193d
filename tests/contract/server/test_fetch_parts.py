"""T8: what an interrupted fetch left on the disk is gone on from only as far as it can be trusted."""

import os

import pytest

from shoal.server.artifacts.imports.partial_file import PartFile


def test_bytes_beyond_the_note_are_not_trusted(tmp_path):
    with PartFile(tmp_path / "p") as part:
        part.start(version='"v"', total=100)
        part.write(b"a" * 60)
    with (tmp_path / "p").open("ab") as file:
        file.write(b"\0" * 40)  # as after a power cut
    with PartFile(tmp_path / "p") as part:
        assert (part.offset, part.version, part.total) == (60, '"v"', 100)
        part.write(b"b" * 40)
        part.finish()
    assert (tmp_path / "p").read_bytes() == b"a" * 60 + b"b" * 40


@pytest.mark.parametrize("damage", ["shorter file", "torn note", "no note"])
def test_a_part_that_lost_something_starts_over(tmp_path, damage):
    with PartFile(tmp_path / "p") as part:
        part.start(version='"v"', total=100)
        part.write(b"a" * 60)
    if damage == "shorter file":
        os.truncate(tmp_path / "p", 10)
    elif damage == "torn note":
        (tmp_path / "p.json").write_text('{"version": "')
    else:
        (tmp_path / "p.json").unlink()
    with PartFile(tmp_path / "p") as part:
        assert (part.offset, part.version) == (0, None)
    assert (tmp_path / "p").stat().st_size == 0
