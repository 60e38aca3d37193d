"""Files of records: what was written is read, by number, and damage is told."""

from __future__ import annotations

import pickle
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.train.data.record_files import RecordReader, RecordWriter, write_records


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=40), max_size=8), min_size=1, max_size=4))
def test_records_of_many_files_come_back_by_number(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("records")
    for number, records in enumerate(files):
        assert write_records(folder / f"{number}.bin", records) == len(records)
    reader = RecordReader(folder)
    expected = [record for records in files for record in records]
    assert [reader[i] for i in range(len(reader))] == expected
    assert [reader[i - len(reader)] for i in range(len(reader))] == expected
    assert reader.counts() == [len(records) for records in files]
    with pytest.raises(IndexError):
        reader[len(reader)]


def test_the_format_is_a_length_of_four_bytes_and_the_bytes(tmp_path):
    write_records(tmp_path / "a.bin", [b"ab", b""])
    assert (tmp_path / "a.bin").read_bytes() == struct.pack("<i", 2) + b"ab" + struct.pack("<i", 0)


def test_files_without_an_index_are_read_too_and_get_one(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"".join(struct.pack("<i", len(r)) + r for r in (b"one", b"two", b"three")))
    assert [RecordReader(path)[i] for i in range(3)] == [b"one", b"two", b"three"]
    index = tmp_path / "a.bin.index"
    kept = index.read_bytes()
    index.write_bytes(kept[:-8])
    assert len(RecordReader(path)) == 3, "an index that is cut off is made again"
    assert index.read_bytes() == kept


def test_an_index_older_than_its_file_is_not_used(tmp_path):
    path = tmp_path / "a.bin"
    write_records(path, [b"x" * 10, b"y" * 10])
    write_records(tmp_path / "other", [b"z" * 4, b"z" * 16])
    path.write_bytes((tmp_path / "other").read_bytes())
    assert RecordReader(path)[1] == b"z" * 16


def test_a_reader_can_be_sent_to_another_process(tmp_path):
    write_records(tmp_path / "a.bin", [b"one", b"two"])
    reader = RecordReader(tmp_path / "a.bin")
    assert reader[0] == b"one"
    assert pickle.loads(pickle.dumps(reader))[1] == b"two"


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(ZeroDivisionError), RecordWriter(tmp_path / "a.bin") as writer:
        writer.write(b"one")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [1, 5])
def test_a_file_that_is_cut_off_is_refused_with_the_record(tmp_path, cut):
    whole = struct.pack("<i", 3) + b"abc" + struct.pack("<i", 4) + b"defg"
    (tmp_path / "a.bin").write_bytes(whole[:-cut])
    with pytest.raises(UsageError, match="record 1, which starts at byte 7") as caught:
        RecordReader(tmp_path / "a.bin")
    assert "again" in str(caught.value.hint)
