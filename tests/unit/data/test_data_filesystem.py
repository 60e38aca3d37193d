import io
import pickle
import random
from datetime import UTC, datetime

import fsspec
import pytest

from shoal.core.datasets import DatasetView
from shoal.core.errors import NotFound
from shoal.data import filesystem as module
from shoal.data.cache import ChunkCache
from shoal.data.filesystem import ShoalFileSystem
from shoal.data.trees import Site
from shoal.store.manifest import dump_manifest, manifest_id
from shoal.store.pack import pack_tree

BIG = random.Random(0).randbytes(5_000_000)


class Server:
    """Dataset 'set' in two versions, out of a packed folder."""

    def __init__(self, folder):
        self.packed = pack_tree(folder, ignore=False)
        self.fetched = 0
        self.requests = []

    def dataset(self, reference):
        self.requests.append(reference)
        if reference not in ("set", "set@1", "set@2"):
            raise NotFound(f"There is no dataset '{reference}' in workspace 'default'.")
        now = datetime.now(UTC)
        return DatasetView(
            id="ds_1",
            name="set",
            version=1 if reference == "set@1" else 2,
            status="available",
            size=self.packed.manifest.size,
            files=len(self.packed.manifest.files),
            manifest_id=manifest_id(self.packed.manifest),
            origin={},
            error=None,
            created_by="ada",
            created_at=now,
            available_at=now,
        )

    def datasets(self):
        return [self.dataset("set@1"), self.dataset("set@2")]

    def manifest(self, reference):
        self.requests.append(f"manifest of {reference}")
        return dump_manifest(self.packed.manifest)

    def fetch(self, names):
        found = {name: self.packed.read(name) for name in names}
        self.fetched += sum(map(len, found.values()))
        return found


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "folder"
    for path, data in {"a.txt": b"hello", "deep/er/b.bin": BIG, "deep/c.txt": b"", "deep.txt": b"x"}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return Server(folder)


@pytest.fixture
def fs(server, tmp_path, monkeypatch):
    site = Site(server, ChunkCache(tmp_path / "cache", 100_000_000))
    monkeypatch.setattr(module, "site", lambda *_: site)
    return ShoalFileSystem()


def test_folders_are_listed(fs):
    assert fs.ls("shoal://set", detail=False) == ["set/a.txt", "set/deep", "set/deep.txt"]
    assert fs.ls("set@1/deep", detail=False) == ["set@1/deep/c.txt", "set@1/deep/er"]
    assert fs.ls("set/a.txt", detail=False) == ["set/a.txt"]
    assert fs.ls("", detail=False) == ["set"]
    assert fs.find("set/deep") == ["set/deep/c.txt", "set/deep/er/b.bin"]
    assert fs.glob("shoal://set/**/*.txt") == ["set/a.txt", "set/deep.txt", "set/deep/c.txt"]
    assert fs.glob("set/deep*") == ["set/deep", "set/deep.txt"]


def test_entries_tell_their_size_and_kind(fs):
    assert fs.info("set/deep/er/b.bin")["size"] == len(BIG)
    assert (fs.isfile("set/a.txt"), fs.isdir("set/a.txt"), fs.isdir("set/deep"), fs.isdir("set")) == (
        True,
        False,
        True,
        True,
    )
    assert not fs.exists("set/none")
    assert fs.du("set") == len(BIG) + 6


def test_files_that_differ_have_different_tags(fs):
    tags = {fs.info(path)["ETag"] for path in fs.find("set")}
    assert len(tags) == 4


@pytest.mark.parametrize("path", ["none", "none/a.txt", "set/none", "set@9/a.txt", "set/a.txt/b", "bad name@x"])
def test_what_is_not_there_is_a_file_not_found_error(fs, path):
    for ask in (fs.info, fs.ls, fs.cat_file, fs.open):
        with pytest.raises(FileNotFoundError):
            ask(f"shoal://{path}")


def test_a_folder_cannot_be_read(fs):
    with pytest.raises(IsADirectoryError):
        fs.cat_file("set/deep")


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (None, None),
        (0, 1),
        (1_000_000, 3_000_001),
        (4_999_990, None),
        (-10, None),
        (None, -10),
        (7, 7),
        (9, 3),
        (4_999_999, 6_000_000),
    ],
)
def test_any_range_can_be_read(fs, start, end):
    assert fs.cat_file("set/deep/er/b.bin", start, end) == BIG[start:end]


def test_random_reads_through_a_file_match(fs):
    rng = random.Random(1)
    with fs.open("shoal://set/deep/er/b.bin") as file:
        for _ in range(200):
            at, size = rng.randrange(len(BIG)), rng.choice([1, 100, 70_000, 900_000])
            file.seek(at)
            assert file.read(size) == BIG[at : at + size]
        file.seek(-5, io.SEEK_END)
        assert file.read() == BIG[-5:]
        assert file.size == len(BIG)


def test_a_small_read_fetches_little(fs, server):
    fs.cat_file("set/deep/er/b.bin", 2_500_000, 2_500_100)
    assert 0 < server.fetched <= 2 << 20


def test_reading_in_order_fetches_everything_once(fs, server):
    with fs.open("set/deep/er/b.bin") as file:
        while file.read(100_000):
            pass
    assert server.fetched == len(BIG)


def test_a_name_is_pinned_to_the_version_it_first_meant(fs, server):
    assert fs.pin("set") == "set@2"
    assert fs.pin("set@1") == "set@1"
    fs.ls("set")
    assert server.requests.count("set") == 1


def test_the_manifest_is_kept_for_the_next_process(fs, server, tmp_path):
    fs.ls("set")
    Site(server, ChunkCache(tmp_path / "cache", 1)).tree("set")
    assert server.requests.count("manifest of set@2") == 1
    for kept in (tmp_path / "cache" / "manifests").iterdir():
        kept.write_text("{}")
    Site(server, ChunkCache(tmp_path / "cache", 1)).tree("set")
    assert server.requests.count("manifest of set@2") == 2


def test_nothing_can_be_written(fs):
    for mode in ("wb", "ab", "w"):
        with pytest.raises(io.UnsupportedOperation):
            fs.open("set/new", mode)


def test_fsspec_knows_the_protocol(fs):
    assert isinstance(fsspec.filesystem("shoal"), ShoalFileSystem)
    with fsspec.open("shoal://set/a.txt", "rt") as file:
        assert file.read() == "hello"
    assert pickle.loads(pickle.dumps(fs)).cat_file("set/a.txt") == b"hello"


def test_pandas_and_pyarrow_read_it(fs, server, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": range(1000)})
    (tmp_path / "tables").mkdir()
    frame.to_parquet(tmp_path / "tables" / "t.parquet")
    server.packed = pack_tree(tmp_path / "tables", ignore=False)
    assert pandas.read_parquet("shoal://set/t.parquet").equals(frame)
    assert parquet.read_table("set", filesystem=fs).num_rows == 1000
