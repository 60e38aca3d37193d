"""`shoal dataset …`: what is pushed under which path, what is said, and what a check finds."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
from stubserver import reply

from shoal.cli.dataset.records import Records, file_kind, unreadable
from shoal.cli.dataset.source import gather, split_urls
from shoal.cli.dataset.splits import Samples, split_of
from shoal.cli.shared.transfer import TransferBar
from shoal.cli.shared.tree_diff import compare
from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.errors import BadArchive, InvalidSpec, NotFound, UsageError
from shoal.store.hashing import chunk_hash

W = "/workspaces/default"
VIEW = {
    "id": "ds_1", "name": "d", "version": 1, "status": "available", "size": 5, "files": 1, "manifest_id": "m",
    "origin": {"kind": "folder", "path": "/p"}, "error": None, "created_by": "me", "created_at": "2025-01-31T12:00:00Z",
    "available_at": None,
}  # fmt: skip


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data/sub").mkdir(parents=True)
    (tmp_path / "data/a.txt").write_text("a")
    (tmp_path / "data/sub/b.txt").write_text("b")
    (tmp_path / "data/.hidden").write_text("h")
    (tmp_path / "one.txt").write_text("one")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("wrapper/x.txt", "x")
        archive.writestr("wrapper/y/z.txt", "z")
    return tmp_path


def paths(gathered):
    return sorted(e.path for e in gathered.entries)


class TestWhatIsPushed:
    def test_a_folders_content_is_the_datasets(self, data):
        with gather([data / "data"]) as found:
            assert paths(found) == [".hidden", "a.txt", "sub/b.txt"]
            assert (found.size, found.origin) == (3, {"kind": "folder", "path": str(data / "data")})

    def test_a_file_keeps_its_name(self, data):
        with gather([data / "one.txt"]) as found:
            assert paths(found) == ["one.txt"]

    def test_an_archive_alone_is_unpacked(self, data):
        with gather([data / "packed.zip"]) as found:
            assert paths(found) == ["x.txt", "y/z.txt"]
            assert found.origin["kind"] == "archive"
            scratch = Path(found.entries[0].disk)
        assert not scratch.exists()

    def test_an_archive_is_kept_when_asked_to_or_when_it_is_not_alone(self, data):
        with gather([data / "packed.zip"], unpack=False) as found:
            assert paths(found) == ["packed.zip"]
        with gather([data / "packed.zip", data / "one.txt"]) as found:
            assert paths(found) == ["one.txt", "packed.zip"]

    def test_of_several_things_each_keeps_its_name(self, data):
        with gather([data / "data", data / "one.txt"]) as found:
            assert paths(found) == ["data/.hidden", "data/a.txt", "data/sub/b.txt", "one.txt"]

    def test_the_present_folder_has_a_name_too(self, data, monkeypatch):
        monkeypatch.chdir(data / "data")
        with gather([data / "one.txt", data / "data/sub/.."]) as found:
            assert "data/a.txt" in paths(found)

    def test_two_things_of_one_name_are_refused_with_both_named(self, data):
        (data / "other").mkdir()
        (data / "other/one.txt").write_text("another")
        with pytest.raises(UsageError, match=r"one\.txt and .*other/one\.txt would both become one\.txt"):
            gather([data / "one.txt", data / "other/one.txt"]).__enter__()

    def test_a_file_and_a_folder_of_one_name_are_refused(self, data):
        (data / "other").mkdir()
        (data / "other/data").write_text("a file")
        with pytest.raises(UsageError, match="both a file and a folder"):
            gather([data / "data", data / "other/data"]).__enter__()

    def test_nothing_and_an_empty_folder_are_empty_datasets(self, tmp_path):
        (tmp_path / "empty").mkdir()
        for given in ([], [tmp_path / "empty"]):
            with gather(given) as found:
                assert (found.entries, found.size) == ([], 0)

    def test_a_link_that_leaves_the_folder_needs_a_word(self, data):
        (data / "data/link").symlink_to(data / "one.txt")
        with pytest.raises(InvalidSpec) as caught:
            gather([data / "data"]).__enter__()
        assert "--follow-links" in (caught.value.hint or "")
        with gather([data / "data"], follow_links=True) as found:
            assert "link" in paths(found)

    def test_what_is_not_there_or_broken_is_told(self, data):
        with pytest.raises(NotFound, match="nope"):
            gather([data / "nope"]).__enter__()
        (data / "broken.zip").write_text("not a zip")
        with pytest.raises(BadArchive):
            gather([data / "broken.zip"]).__enter__()

    @pytest.mark.parametrize("url", ["s3://b/p", "hf://datasets/a/b", "http://x/y", "HTTPS://x/y.zip"])
    def test_a_url_is_the_servers_to_fetch(self, url):
        assert split_urls([url]) == ([], url)
        with pytest.raises(UsageError, match="must be the only"):
            split_urls([url, "x"])

    def test_other_schemes_are_refused(self):
        with pytest.raises(UsageError, match="ftp://x"):
            split_urls(["ftp://x/y"])


class TestPush:
    def served(self, stub, **committed):
        stub.routes = {
            f"POST {W}/datasets": reply(201, VIEW | {"status": "uploading"}),
            f"POST {W}/store/missing": reply(body={"missing": [chunk_hash(b"one")]}),
            f"POST {W}/store/chunks": reply(body={"stored": 1}),
            f"PUT {W}/datasets/ds_1/manifest": reply(body={"missing": [], "dataset": VIEW | committed, **committed}),
        }

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            ({"version": 1}, "Version 1: 1 file, 5 B (3 B sent)."),
            ({"version": 2}, "New version 2: 1 file, 5 B (3 B sent)."),
            ({"version": 2, "unchanged": True}, "Unchanged: this is version 2 (1 file, 5 B). 3 B was missing on the"),
        ],
    )
    def test_it_says_which_version_it_became(self, cli, stub, data, answer, said):
        self.served(stub, **answer)
        ran = cli("dataset", "push", "d", "--file", str(data / "one.txt"))
        assert (ran.code, ran.out) == (0, f"d@{answer['version']}\n")
        assert said in ran.err

    def test_json_has_it_all(self, cli, stub, data):
        self.served(stub, version=3)
        ran = cli("dataset", "push", "d", "--file", str(data / "one.txt"), "--json")
        assert {k: json.loads(ran.out)[k] for k in ("version", "unchanged", "sent")} == {
            "version": 3,
            "unchanged": False,
            "sent": 3,
        }

    def test_several_files_follow_one_option_or_many(self, cli, stub, data):
        self.served(stub)
        for given in (["--file", "data/a.txt", "one.txt"], ["--file", "data/a.txt", "--file", "one.txt"]):
            stub.asked.clear()
            assert cli("dataset", "push", "d", *(str(data / g) if "." in g else g for g in given)).code == 0
            assert [f["path"] for f in stub.asked[-1].json["files"]] == ["a.txt", "one.txt"]

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            (["d"], "Nothing to push"),
            (["d", "--empty", "--file", "x"], "--empty and --file cannot be combined"),
            (["bad name", "--empty"], "not a usable dataset name"),
            (["d", "--file", "x", "--detach"], "--detach works only with a URL"),
            (["d", "--file", "x", "--secret", "A=b"], "--secret works only with a URL"),
        ],
    )
    def test_what_makes_no_sense_is_told_before_anything_is_sent(self, cli, stub, given, told):
        ran = cli("dataset", "push", *given)
        assert ran.code == 2 and told in ran.err and not stub.asked

    def test_an_import_can_be_left_to_the_server(self, cli, stub):
        stub.routes = {f"POST {W}/datasets/import": reply(201, VIEW | {"status": "importing"})}
        ran = cli("dataset", "push", "d", "--file", "hf://datasets/a/b", "--detach", "--secret", "HF_TOKEN=hf")
        assert (ran.code, ran.out) == (0, "d@1\n")
        assert stub.asked[0].json["credentials"] == {"HF_TOKEN": "hf"}

    def test_an_import_that_fails_is_an_error(self, cli, stub):
        stub.routes = {
            f"POST {W}/datasets/import": reply(201, VIEW | {"status": "importing"}),
            f"GET {W}/datasets/ds_1": reply(body=VIEW | {"status": "error", "error": "it is a web page"}),
        }
        ran = cli("dataset", "push", "d", "--file", "https://example.org/x")
        assert ran.code == 4 and "could not be imported: it is a web page" in ran.err


def test_the_list_shows_the_newest_usable_version_and_what_is_on_its_way(cli, stub):
    versions = [
        VIEW | {"id": f"ds_{v}", "version": v, "status": s}
        for v, s in ((3, "error"), (2, "available"), (1, "available"))
    ]
    stub.will(reply(body=versions))
    assert [d["version"] for d in json.loads(cli("dataset", "list", "--json").out)] == [3, 2]
    assert [d["version"] for d in json.loads(cli("dataset", "list", "--all-versions", "--json").out)] == [3, 2, 1]


def test_deleting_asks_first(cli, stub):
    stub.routes = {f"GET {W}/datasets/d": reply(body=VIEW), f"GET {W}/datasets": reply(body=[VIEW])}
    ran = cli("dataset", "delete", "d")
    assert ran.code == 2 and "--yes" in ran.err
    stub.routes[f"DELETE {W}/datasets/d"] = reply(body={"deleted": 1})
    assert "Deleted 1 version of 'd'." in cli("dataset", "delete", "d", "-y").err


def entry(path, *contents):
    return FileEntry(
        path=path, size=sum(map(len, contents)), chunks=[Chunk(hash=chunk_hash(c), size=len(c)) for c in contents]
    )


def test_a_diff_tells_files_apart_by_content():
    old = Manifest(files=[entry("a", b"1"), entry("gone", b"2"), entry("same", b"3"), entry("x", b"45", b"6")])
    new = Manifest(files=[entry("a", b"11"), entry("new", b"2"), entry("same", b"3"), entry("x", b"45", b"7")])
    found = compare(old, new)
    assert [f.path for f in found.added] == ["new"]
    assert [f.path for f in found.removed] == ["gone"]
    assert [(f.path, f.old_size, f.new_size) for f in found.changed] == [("a", 1, 2), ("x", 3, 3)]
    assert (found.unchanged, found.shared_bytes) == (1, 4)


class TestBar:
    def make(self, **options):
        self.now = 0.0
        return TransferBar("Pushing", clock=lambda: self.now, **options)

    def test_it_shows_how_far_how_fast_and_how_long_still(self):
        bar = self.make(total=100 << 20)
        with bar:
            for _ in range(10):
                self.now += 1.0
                bar.add(4 << 20)
            assert bar.text(with_bar=False) == "Pushing  40%  40.0 MiB of 100 MiB  4.0 MiB/s  15 s left"
            assert len(bar.text(with_bar=True)) <= 80

    def test_what_was_there_already_came_at_no_rate(self):
        bar = self.make(total=100 << 20)
        with bar:
            bar.add(80 << 20)
            for _ in range(4):
                self.now += 1.0
                bar.add(1 << 20)
            assert "1.0 MiB/s  16 s left" in bar.text(with_bar=False)

    def test_it_never_goes_back(self):
        bar = self.make(total=100)
        with bar:
            self.now += 1
            bar.add(50)
            bar.add(-30)
            assert "50%" in bar.text(with_bar=False)

    def test_elsewhere_than_on_a_terminal_it_is_a_line_now_and_then(self, capsys):
        bar = self.make(total=100 << 20)
        with bar:
            for _ in range(120):
                self.now += 0.1
                bar.add(100 << 10)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2 and all(line.startswith("Pushing  ") for line in lines)

    def test_after_ctrl_c_whoever_adds_is_stopped(self, capsys):
        bar = self.make(total=1, on_interrupt="Go on like this.")
        with pytest.raises(KeyboardInterrupt), bar:
            try:
                bar._interrupt(2, None)
            finally:
                with pytest.raises(InterruptedError):
                    bar.add(1)
        assert "Go on like this." in capsys.readouterr().err


def read(name, data):
    """(samples, problem) of a file of this name and content."""
    records = Records(name)
    try:
        return list(records.read(io.BytesIO(data))), None
    except Exception as error:
        return [], unreadable(error, records)


def zipped(**files):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def tarred(mode="w:gz"):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:
        info = tarfile.TarInfo("a")
        info.size = 100_000
        archive.addfile(info, io.BytesIO(bytes(range(250)) * 400))
    return made.getvalue()


class TestCheck:
    @pytest.mark.parametrize(
        ("name", "data", "count"),
        [
            ("a.jsonl", b'{"x": 1}\n\n{"x": 2}\n', 2),
            ("a.jsonl.gz", gzip.compress(b'{"x": 1}\n', mtime=0), 1),
            ("a.json", b"[1, 2]", 0),
            ("a.csv", b"x,y\n1,2\n3,4\n", 2),
            ("a.tsv", b"x\ty\n1\t2\n", 1),
            ("a.txt", b"short\na line that is long enough to be a sample\n", 1),
            ("a.zip", zipped(a="1"), 0),
            ("a.tar.gz", tarred(), 0),
            ("a.tar", tarred("w"), 0),
            ("a.bin.gz", gzip.compress(b"1", mtime=0), 0),
        ],
    )
    def test_sound_files_are_read(self, name, data, count):
        samples, problem = read(name, data)
        assert (len(samples), problem) == (count, None)

    @pytest.mark.parametrize(
        ("name", "data", "line", "told"),
        [
            ("a.jsonl", b'{"x": 1}\n{"x": \n', 2, "is not JSON"),
            ("a.jsonl", b'{"x": 1}\n"\xff"\n', 2, "is not UTF-8"),
            ("a.json", b'{"x": 1,\n]', 2, "is not JSON"),
            ("a.csv", b"x,y\n1,2\n3,4,5\n", 3, "has 3 fields where the first line has 2"),
            ("a.txt", b"fine\nfine\n\xff\xff\n", 3, "is not UTF-8"),
            ("a.zip", zipped(a="1" * 100)[:-10], None, "cannot be read"),
            ("a.zip", zipped(a="1" * 100).replace(b"111", b"121", 1), None, "damaged at a"),
            ("a.tar.gz", tarred()[:-100], None, "cannot be read"),
            ("a.tar", tarred("w")[:50_000], None, "cannot be read"),
            ("a.jsonl.gz", gzip.compress(b'{"x": 1}\n', mtime=0)[:-5], None, "cannot be read"),
            ("a.parquet", b"PAR1", None, ""),
            ("a.arrow", b"hello", None, "is not an arrow file"),
        ],
    )
    def test_broken_files_are_told_with_the_line(self, name, data, line, told):
        _, problem = read(name, data)
        assert problem is not None and told in problem[1]
        assert line is None or problem[0] == line

    def test_parquet_and_arrow_are_read_where_pyarrow_is(self, tmp_path):
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = pa.table({"x": list(range(1000))})
        pq.write_table(table, tmp_path / "a.parquet")
        with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as stream:
            stream.write_table(table)
        with pa.ipc.new_file(tmp_path / "b.arrow", table.schema) as file:
            file.write_table(table)
        for name in ("a.parquet", "a.arrow", "b.arrow"):
            data = (tmp_path / name).read_bytes()
            assert read(name, data) == ([], None)
            assert read(name, data[: len(data) // 2])[1] is not None

    def test_without_pyarrow_the_ends_are_looked_at(self, monkeypatch):
        monkeypatch.setattr(Records, "_pyarrow", lambda self, module: None)
        assert read("a.parquet", b"PAR1" + b"x" * 20 + (10).to_bytes(4, "little") + b"PAR1") == ([], None)
        assert read("a.parquet", b"PAR1" + b"x" * 20)[1] == (None, "is not a complete parquet file")

    def test_other_files_are_not_opened(self):
        assert [file_kind(p) for p in ("a.jpg", "b/model.bin", "README")] == [None] * 3

    @pytest.mark.parametrize(
        ("path", "split"),
        [
            ("train.jsonl", "train"),
            ("data/valid/1.jpg", "validation"),
            ("data/validation-00000-of-00002.parquet", "validation"),
            ("wiki.dev.txt", "validation"),
            ("TEST_set/x", "test"),
            ("training_data.csv", "train"),
            ("latest/x.csv", None),
            ("constrain.txt", None),
        ],
    )
    def test_splits_are_known_by_their_names(self, path, split):
        assert split_of(path) == split

    def test_samples_in_two_splits_are_counted_with_an_example(self):
        samples = Samples()
        for i in range(10):
            samples.add("train", "train.txt", i + 1, str(i).encode())
        for i in range(7, 12):
            samples.add("test", "test.txt", i - 6, str(i).encode())
        (found,) = samples.duplicates()
        assert (found.first_split, found.split, found.count, found.is_estimate) == ("train", "test", 3, False)
        assert (found.first_path, found.path) == ("train.txt", "test.txt")
        assert found.first_line - found.line == 7

    def test_the_same_sample_twice_in_one_split_is_no_leak(self):
        samples = Samples()
        for _ in range(3):
            samples.add("train", "a", 1, b"x")
        assert samples.duplicates() == []

    def test_memory_is_bounded_and_the_count_then_an_estimate(self):
        samples = Samples(most=1000)
        for split, first in (("train", 0), ("test", 16_000)):
            for i in range(first, first + 20_000):
                samples.add(split, split, i, str(i).encode())
        assert len(samples._seen) <= 1000
        (found,) = samples.duplicates()
        assert found.is_estimate and 2_000 < found.count < 7_000
