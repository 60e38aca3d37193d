import pickle

import fsspec
import pytest

import shoal.data
from shoal.core.errors import Corrupt, InvalidSpec, MissingExtra, NotFound
from shoal.data import source as module
from shoal.data.source import open_source


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "set"
    for path in ("train/a.txt", "train/b.txt", "test/a.txt", "top.txt"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{path}\n")
    return root


def paths(source):
    return [file.path for file in source.files]


def test_a_folder_gives_its_files_sorted_by_path(folder):
    assert paths(open_source(folder, {})) == ["test/a.txt", "top.txt", "train/a.txt", "train/b.txt"]
    assert paths(open_source(f"file://{folder}", {})) == paths(open_source(str(folder), {}))


def test_a_pattern_gives_those_that_match(folder):
    assert paths(open_source(f"{folder}/train/*.txt", {})) == ["a.txt", "b.txt"]
    assert paths(open_source(f"{folder}/**/a.txt", {})) == ["test/a.txt", "train/a.txt"]


def test_a_file_is_a_source_of_one(folder):
    source = open_source(folder / "top.txt", {})
    assert paths(source) == ["top.txt"]
    assert source.read("top.txt", 0, 3) == b"top"


def test_relative_paths_begin_with_a_dot(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert paths(open_source("./train", {})) == ["a.txt", "b.txt"]


def test_any_url_fsspec_knows_can_be_read():
    with fsspec.open("memory://bucket/x/a.txt", "w") as file:
        file.write("one\ntwo\n")
    assert list(shoal.data.stream("memory://bucket/x", shuffle=False)) == ["one", "two"]
    assert list(shoal.data.stream("memory://bucket/x/*.txt", shuffle=False)) == ["one", "two"]


def test_an_unknown_kind_of_url_is_refused():
    with pytest.raises(InvalidSpec, match="nonsense"):
        open_source("nonsense://a", {})


def test_a_cloud_without_its_package_is_told_what_to_install(monkeypatch):
    def missing(url, **options):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(MissingExtra, match="s3://"):
        open_source("s3://bucket/x", {})


def test_http_without_its_package_is_told_too(monkeypatch):
    def missing(url, **options):
        raise ImportError("requires aiohttp")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingExtra, match="aiohttp"):
        open_source("http://127.0.0.1:1/a.jsonl", {})


class TestMounted:
    @pytest.fixture
    def job(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SHOAL_JOB_ID", "job_1")
        monkeypatch.setenv("DATA_LOCATION", str(tmp_path))
        return tmp_path

    def test_a_dataset_the_job_has_mounted_is_read_from_there(self, job, folder):
        assert paths(open_source("set/train", {})) == ["a.txt", "b.txt"]

    def test_so_is_the_only_one(self, job, folder, monkeypatch):
        monkeypatch.setenv("DATA_LOCATION", str(folder))
        assert module.mounted("set") == folder

    def test_a_version_is_not_taken_for_the_mounted_one(self, job, folder):
        assert module.mounted("set@3") is None

    def test_outside_a_job_nothing_is_mounted(self, job, folder, monkeypatch):
        monkeypatch.delenv("SHOAL_JOB_ID")
        assert module.mounted("set") is None

    def test_the_order_is_the_same_as_by_url(self, job, folder):
        assert list(shoal.data.stream("set")) == list(shoal.data.stream(folder))
        state = shoal.data.stream("set").state_dict()
        shoal.data.stream(folder).load_state_dict(state)


def test_a_file_that_shrinks_or_goes_is_an_error_and_not_an_end(folder):
    source = open_source(folder, {})
    (folder / "top.txt").write_text("x")
    with pytest.raises(Corrupt, match="gave 1 bytes where 5"):
        source.read("top.txt", 0, 5)
    (folder / "top.txt").unlink()
    with pytest.raises(NotFound, match="does not exist any more"):
        source.read("top.txt", 0, 5)


class TestAhead:
    @pytest.fixture
    def remote(self):
        fsspec.filesystem("memory").pipe("/ahead/a.bin", bytes(range(256)) * 8192)
        return open_source("memory://ahead", {})

    def test_pieces_are_the_file_whatever_was_read_ahead(self, remote):
        data = bytes(range(256)) * 8192
        assert b"".join(remote.pieces("a.bin", 5, 1_500_000)) == data[5:]

    def test_what_was_warmed_is_handed_over(self, remote):
        remote.warm("a.bin", 0, 100)
        assert remote.read("a.bin", 0, 100) == bytes(range(100))
        assert remote._warm == {}

    def test_what_no_one_asks_for_is_forgotten(self, remote):
        for at in range(1000):
            remote.warm("a.bin", at, at + 1)
        assert len(remote._warm) <= module.WARM_LIMIT

    def test_a_pickled_source_reads_on(self, remote):
        remote.warm("a.bin", 0, 100)
        assert pickle.loads(pickle.dumps(remote)).read("a.bin", 1, 2) == b"\x01"
