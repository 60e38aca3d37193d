"""Checkpoints by plain HTTP: one file, or all of them as a zip."""

import io
import random
import tracemalloc
import zipfile

import pytest

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.checkpoints import CheckpointPush
from shoal.server.artifacts import checkpoints, chunks, downloads
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames

PIECES = [random.Random(n).randbytes(300_000) for n in range(3)]
FILES = {
    "config.json": [b'{"a": 1}'],
    "empty": [],
    "sub/model weights é.bin": PIECES,
    "files/manifest": [b"a name like a route"],
    "archive": [b"another"],
}
BASE = "/workspaces/default/checkpoints/thing"


def entry(path, pieces, executable=False):
    parts = [Chunk(hash=chunk_hash(p), size=len(p)) for p in pieces]
    return FileEntry(path=path, size=sum(map(len, pieces)), executable=executable, chunks=parts)


@pytest.fixture
def thing(ctx, anna):
    """A checkpoint pushed under the name 'thing'."""
    access = anna.access()
    pieces = {chunk_hash(p): p for parts in FILES.values() for p in parts}
    chunks.put(ctx, access.workspace_id, b"".join(encode_frames(pieces.items())))
    manifest = Manifest(files=[entry(path, FILES[path], path == "config.json") for path in sorted(FILES)])
    return checkpoints.push(ctx, access, CheckpointPush(name="thing", manifest=manifest)).checkpoint


@pytest.mark.parametrize("path", FILES)
def test_a_file_comes_as_it_is(as_anna, thing, path):
    for reference in ("thing", thing.id):
        answer = as_anna.get(f"/workspaces/default/checkpoints/{reference}/files/{path}")
        assert (answer.status_code, answer.content) == (200, b"".join(FILES[path]))
        assert answer.headers["content-length"] == str(len(answer.content))
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_its_name_is_safe_in_a_header(as_anna, thing):
    found = as_anna.get(f"{BASE}/files/sub/model weights é.bin").headers["content-disposition"]
    assert found == "attachment; filename=\"model_weights__.bin\"; filename*=UTF-8''model%20weights%20%C3%A9.bin"


@pytest.mark.parametrize(
    "path", ["nope", "sub", "../thing", "config.json/", "/config.json", "sub/%2e%2e/config.json", "%2e%2e%2fx", "x%00y"]
)
def test_other_names_are_not_found(as_anna, thing, path):
    answer = as_anna.get(f"{BASE}/files/{path}")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


def test_a_mistyped_name_is_recognised(as_anna, thing):
    assert "Did you mean 'config.json'?" in as_anna.get(f"{BASE}/files/confg.json").json()["error"]["message"]


@pytest.mark.parametrize(
    ("header", "first", "last"),
    [
        ("bytes=0-9", 0, 9),
        ("bytes=299990-600010", 299_990, 600_010),
        ("bytes=899999-", 899_999, 899_999),
        ("bytes=500000-99999999", 500_000, 899_999),
        ("bytes=-10", 899_990, 899_999),
        ("bytes=-9999999", 0, 899_999),
    ],
)
def test_a_download_can_be_continued(app, anna, thing, header, first, last):
    from shoal.testing.server import AppClient

    client = AppClient(app, anna.key, headers={"Range": header})
    answer = client.get(f"{BASE}/files/sub/model weights é.bin")
    assert answer.status_code == 206
    assert answer.content == b"".join(PIECES)[first : last + 1]
    assert answer.headers["content-range"] == f"bytes {first}-{last}/900000"


@pytest.mark.parametrize("header", ["bytes=900000-", "bytes=900001-900005", "bytes=-0"])
def test_a_range_beyond_the_end_is_told_so(app, anna, thing, header):
    from shoal.testing.server import AppClient

    answer = AppClient(app, anna.key, headers={"Range": header}).get(f"{BASE}/files/sub/model weights é.bin")
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */900000")


@pytest.mark.parametrize("header", ["bytes=5-2", "bytes=0-1,5-6", "lines=1-2", "bytes=-", "bytes=" + "9" * 5000 + "-"])
def test_a_range_that_is_not_understood_gives_all(app, anna, thing, header):
    from shoal.testing.server import AppClient

    answer = AppClient(app, anna.key, headers={"Range": header}).get(f"{BASE}/files/config.json")
    assert (answer.status_code, answer.content) == (200, b'{"a": 1}')


def test_an_archive_holds_all_files_in_a_folder_of_its_name(as_anna, thing):
    answer = as_anna.get(f"{BASE}/archive")
    assert 'filename="thing.zip"' in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        assert {i.filename: archive.read(i) for i in archive.infolist()} == {
            f"thing/{path}": b"".join(parts) for path, parts in FILES.items()
        }
        modes = {i.filename: i.external_attr >> 16 & 0o777 for i in archive.infolist()}
        assert (modes["thing/config.json"], modes["thing/empty"]) == (0o755, 0o644)


def test_memory_stays_flat(ctx, anna):
    access, piece = anna.access(), random.Random(1).randbytes(1 << 20)
    chunks.put(ctx, access.workspace_id, b"".join(encode_frames([(chunk_hash(piece), piece)])))
    manifest = Manifest(files=[entry("large.bin", [piece] * 64)])
    checkpoints.push(ctx, access, CheckpointPush(name="large", manifest=manifest))
    tracemalloc.start()
    size = sum(len(part) for part in downloads.archive(ctx, access, "large").body)
    size += sum(len(part) for part in downloads.file(ctx, access, "large", "large.bin").body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 128 << 20 and peak < 16 << 20


def test_missing_parts_are_a_clean_error(ctx, as_anna, thing):
    ctx.store.delete([chunk_hash(PIECES[1])])
    for path in ("archive", "files/sub/model weights é.bin"):
        answer = as_anna.get(f"{BASE}/{path}")
        assert answer.status_code == 422 and "missing in the store" in answer.json()["error"]["message"]
    assert as_anna.get(f"{BASE}/files/config.json").status_code == 200


def test_damage_breaks_the_answer_off_and_never_passes_as_content(ctx, anna, thing, monkeypatch):
    from shoal.core.errors import Corrupt

    real = ctx.store.get

    def damaged(name):
        if name == chunk_hash(PIECES[2]):
            raise Corrupt()
        return real(name)

    monkeypatch.setattr(ctx.store, "get", damaged)
    for found in (
        downloads.archive(ctx, anna.access(), "thing"),
        downloads.file(ctx, anna.access(), "thing", "sub/model weights é.bin"),
    ):
        with pytest.raises(Corrupt):
            list(found.body)
