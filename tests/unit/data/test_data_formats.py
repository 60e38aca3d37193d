import gzip
import io
import json
import sys
import tarfile

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import shoal.data
from shoal.core.errors import InvalidSpec, MissingExtra
from shoal.data.formats import choose, kind_of
from shoal.data.formats.lines import split_lines
from shoal.data.source import File


def read(where, **options):
    return list(shoal.data.stream(where, shuffle=False, **options))


class TestLines:
    @given(
        st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), max_size=20),
        st.booleans(),
        st.integers(1, 12),
        st.integers(1, 7),
    )
    def test_a_file_cut_anywhere_and_read_in_any_pieces_gives_every_line_once(self, lines, ends, block, piece):
        data = b"\n".join(lines) + (b"\n" if ends and lines else b"")
        found = []
        for start in range(0, len(data), block):
            at = max(0, start - 1)
            pieces = (data[p : p + piece] for p in range(at, len(data), piece))
            found += split_lines(pieces, at, skip_first=start > 0, end=min(start + block, len(data)))
        expected = data.split(b"\n")
        expected = expected[:-1] if not expected[-1] else expected
        assert [line for _, line in found] == expected
        assert all(data[at : at + len(line)] == line for at, line in found)

    def test_text_keeps_blank_lines_and_json_lines_do_not(self, tmp_path):
        (tmp_path / "a.txt").write_bytes(b"one\r\n\ntwo")
        assert read(tmp_path) == ["one", "", "two"]
        (tmp_path / "a.txt").rename(tmp_path / "a.jsonl")
        (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}')
        assert read(tmp_path) == [{"a": 1}, {"a": 2}]

    @pytest.mark.parametrize("suffix", ["gz", "zst"])
    def test_compressed_lines_are_read_through(self, tmp_path, suffix):
        data = b"".join(b'{"id": %d}\n' % i for i in range(3000))
        packed = (
            gzip.compress(data) if suffix == "gz" else zstandard.compress(data[:9000]) + zstandard.compress(data[9000:])
        )
        (tmp_path / f"a.jsonl.{suffix}").write_bytes(packed)
        assert [r["id"] for r in read(tmp_path)] == list(range(3000))
        assert sorted(r["id"] for r in shoal.data.stream(tmp_path)) == list(range(3000))
        assert shoal.data.stream(tmp_path).as_map()[1234] == {"id": 1234}

    @pytest.mark.parametrize("suffix", ["gz", "zst"])
    def test_a_file_that_cannot_be_unpacked_is_named(self, tmp_path, suffix):
        data = gzip.compress(b"x\n" * 9999) if suffix == "gz" else zstandard.compress(b"x\n" * 9999)
        (tmp_path / f"a.txt.{suffix}").write_bytes(data[: len(data) // 2])
        with pytest.raises(InvalidSpec, match=rf"a\.txt\.{suffix} is malformed"):
            read(tmp_path)

    def test_a_line_may_be_longer_than_a_block(self, tmp_path):
        lines = [f"{n}:" + "x" * 300_000 for n in range(5)] + ["short"]
        (tmp_path / "a.txt").write_text("\n".join(lines))
        assert read(tmp_path) == lines
        assert sorted(shoal.data.stream(tmp_path)) == sorted(lines)


class TestCsv:
    def test_rows_are_named_by_the_header_and_may_hold_line_breaks(self, tmp_path):
        (tmp_path / "a.csv").write_text('name,note\nada,"two\nlines, one cell"\n\nbob,x\n')
        assert read(tmp_path) == [{"name": "ada", "note": "two\nlines, one cell"}, {"name": "bob", "note": "x"}]

    def test_tabs_separate_in_tsv(self, tmp_path):
        (tmp_path / "a.tsv").write_text("a\tb\n1\t2\n")
        assert read(tmp_path) == [{"a": "1", "b": "2"}]

    def test_a_cell_may_be_large(self, tmp_path):
        (tmp_path / "a.csv").write_text("a\n" + "x" * 200_000 + "\n")
        assert len(read(tmp_path)[0]["a"]) == 200_000

    def test_a_row_with_too_few_cells_is_malformed(self, tmp_path):
        (tmp_path / "a.csv").write_text("a,b\n1\n")
        with pytest.raises(InvalidSpec, match="1 cells under 2 names"):
            read(tmp_path)


class TestArrow:
    @pytest.fixture(autouse=True)
    def arrow(self):
        self.pa = pytest.importorskip("pyarrow")

    def table(self, length):
        return self.pa.table({"id": list(range(length)), "tokens": [[i, i + 1] for i in range(length)]})

    def test_parquet_is_cut_by_row_groups_and_counted_by_its_footers(self, tmp_path):
        from pyarrow import parquet

        parquet.write_table(self.table(1000), tmp_path / "a.parquet", row_group_size=100)
        stream = shoal.data.stream(tmp_path)
        assert [block.total for block in stream.reader.blocks] == [100] * 10
        assert sorted(r["id"] for r in stream) == list(range(1000))
        assert read(tmp_path)[7] == {"id": 7, "tokens": [7, 8]}
        assert shoal.data.stream(tmp_path).as_map()[999]["id"] == 999

    @pytest.mark.parametrize("kind", ["file", "stream"])
    def test_arrow_is_read_as_file_and_as_stream(self, tmp_path, kind):
        from pyarrow import ipc

        make = ipc.new_file if kind == "file" else ipc.new_stream
        with make(str(tmp_path / "a.arrow"), self.table(1).schema) as writer:
            writer.write_table(self.table(250), max_chunksize=60)
        assert [r["id"] for r in read(tmp_path)] == list(range(250))

    def test_a_folder_of_save_to_disk_is_read_by_its_arrow_files(self, tmp_path):
        datasets = pytest.importorskip("datasets")
        data = datasets.Dataset.from_dict({"input_ids": [[i] * 4 for i in range(100)]})
        data.save_to_disk(tmp_path / "one", num_shards=3)
        assert [r["input_ids"][0] for r in read(tmp_path / "one")] == list(range(100))
        datasets.DatasetDict({"train": data, "test": data}).save_to_disk(tmp_path / "two")
        with pytest.raises(InvalidSpec, match="several splits"):
            read(tmp_path / "two")
        assert len(read(tmp_path / "two" / "train")) == 100

    def test_a_damaged_file_is_named(self, tmp_path):
        (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
        with pytest.raises(InvalidSpec, match=r"a\.parquet"):
            read(tmp_path)

    def test_without_pyarrow_the_missing_part_is_named(self, tmp_path, monkeypatch):
        (tmp_path / "a.parquet").write_bytes(b"PAR1")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingExtra) as caught:
            read(tmp_path)
        assert "pip install pyarrow" in caught.value.hint


class TestTar:
    def archive(self, path, names, mode="w"):
        with tarfile.open(path, mode) as tar:
            for name in names:
                content = f"content of {name}".encode()
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))

    def samples(self, count):
        return [f"train/{n:04}.{suffix}" for n in range(count) for suffix in ("jpg", "seg.png", "json")]

    @pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz"])
    def test_neighbours_with_one_stem_make_a_sample(self, tmp_path, name):
        self.archive(tmp_path / name, self.samples(200), "w" if name == "a.tar" else "w:gz")
        found = read(tmp_path)
        assert len(found) == 200
        assert found[3] == {
            "__key__": "train/0003",
            "jpg": b"content of train/0003.jpg",
            "seg.png": b"content of train/0003.seg.png",
            "json": b"content of train/0003.json",
        }
        assert sorted(s["__key__"] for s in shoal.data.stream(tmp_path)) == [s["__key__"] for s in found]

    def test_samples_have_numbers_also_where_names_are_long(self, tmp_path):
        names = ["x" * 150 + name for name in self.samples(150)]
        self.archive(tmp_path / "a.tar", names)
        view = shoal.data.stream(tmp_path).as_map()
        assert [view[n]["__key__"][-4:] for n in (149, 64, 0, 63, 128)] == ["0149", "0064", "0000", "0063", "0128"]

    def test_what_is_no_tar_is_malformed(self, tmp_path):
        (tmp_path / "a.tar").write_bytes(b"x" * 2000)
        with pytest.raises(InvalidSpec, match=r"a\.tar is malformed"):
            read(tmp_path)


def test_other_files_are_records_of_their_own(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"meow")
    (tmp_path / "dog.png").write_bytes(b"")
    (tmp_path / ".hidden").write_bytes(b"?")
    assert read(tmp_path) == [{"path": "cat/1.png", "bytes": b"meow"}, {"path": "dog.png", "bytes": b""}]
    assert len(shoal.data.stream(tmp_path).as_map()) == 2


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a.jsonl", "jsonl"),
        ("a.b.JSONL.gz", "jsonl"),
        ("a.txt.zst", "text"),
        ("a.tar.gz", "tar"),
        ("a.tgz", "tar"),
        ("a.gz", "files"),
        ("a.json", "files"),
        ("dir.parquet/part", "files"),
        ("noextension", "files"),
    ],
)
def test_a_format_is_known_by_its_name(path, kind):
    assert kind_of(path) == kind


def test_files_that_describe_a_dataset_are_none_of_its_records():
    names = ["README.md", "LICENSE", "data/train.jsonl", "dataset_info.json", ".gitattributes", "_SUCCESS"]
    _, files = choose([File(name, 1) for name in names], None, "it")
    assert [f.path for f in files] == ["data/train.jsonl"]


def test_files_of_several_formats_are_refused_rather_than_guessed_at():
    files = [File("labels.csv", 1), File("a.png", 1)]
    with pytest.raises(InvalidSpec, match=r"several formats \(csv, files\): labels\.csv, a\.png"):
        choose(files, None, "it")
    assert choose(files, "files", "it")[1] == files


def test_an_unknown_format_is_refused():
    with pytest.raises(InvalidSpec, match="Did you mean 'jsonl'"):
        choose([], "json", "it")


def test_a_named_format_reads_files_of_any_name(tmp_path):
    (tmp_path / "data.json").write_text(json.dumps({"a": 1}) + "\n" + json.dumps({"a": 2}))
    assert read(tmp_path / "data.json", format="jsonl") == [{"a": 1}, {"a": 2}]
