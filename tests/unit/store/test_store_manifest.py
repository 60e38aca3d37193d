from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.errors import InvalidSpec
from shoal.store.hashing import chunk_hash
from shoal.store.manifest import check_manifest, chunk_hashes, dump_manifest, load_manifest, manifest_id

parts = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="/\\:"), min_size=1, max_size=8
).filter(lambda p: p not in (".", ".."))
paths = st.lists(parts, min_size=1, max_size=3).map("/".join)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(paths, unique=True, max_size=6))
    names = [n for n in names if not any(n.startswith(other + "/") for other in names)]
    files = []
    for name in names:
        datas = draw(st.lists(st.binary(min_size=1, max_size=20), max_size=3))
        chunks = [Chunk(hash=chunk_hash(d), size=len(d)) for d in datas]
        files.append(FileEntry(path=name, size=sum(map(len, datas)), executable=draw(st.booleans()), chunks=chunks))
    return Manifest(files=files)


@given(manifests())
@settings(max_examples=60, deadline=None)
def test_a_manifest_comes_back_from_its_bytes_and_keeps_its_id(manifest: Manifest) -> None:
    again = load_manifest(dump_manifest(manifest))
    assert manifest_id(again) == manifest_id(manifest)
    assert sorted(f.path for f in again.files) == sorted(f.path for f in manifest.files)
    assert dump_manifest(again) == dump_manifest(manifest)


@given(manifests(), st.randoms())
@settings(max_examples=30, deadline=None)
def test_the_order_of_files_does_not_change_the_id(manifest: Manifest, random: object) -> None:
    shuffled = manifest.model_copy(update={"files": list(reversed(manifest.files))})
    assert manifest_id(shuffled) == manifest_id(manifest)


def test_the_canonical_form_never_changes() -> None:
    chunk = Chunk(hash="ab" * 32, size=3)
    manifest = Manifest(files=[FileEntry(path="ä/b.py", size=3, executable=True, chunks=[chunk])])
    assert dump_manifest(manifest).decode() == (
        '{"files":[{"chunks":[{"hash":"'
        + "ab" * 32
        + '","size":3}],"executable":true,"path":"ä/b.py","size":3}],"version":1}'
    )
    assert manifest_id(Manifest(files=[])) == chunk_hash(b'{"files":[],"version":1}')


def entry(path: str, size: int = 0, *chunks: Chunk) -> FileEntry:
    return FileEntry.model_construct(path=path, size=size, executable=False, chunks=list(chunks))


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([entry("a"), entry("a")], "twice"),
        ([entry("a"), entry("a/b")], "both a file and a folder"),
        ([entry("a", 5, Chunk(hash="0" * 64, size=4))], "add up"),
        ([entry("a", 17 << 20, Chunk(hash="0" * 64, size=17 << 20))], "16 MiB"),
        ([entry("a", 0, Chunk(hash="0" * 64, size=0))], "empty chunk"),
        ([entry("../a")], "safe relative path"),
    ],
)
def test_what_could_not_be_written_out_is_refused(files: list[FileEntry], says: str) -> None:
    with pytest.raises(InvalidSpec, match=says):
        check_manifest(Manifest.model_construct(version=1, files=files))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"files":[{"path":"/etc/x","size":0,"chunks":[]}]}', b"\xff"])
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidSpec):
        load_manifest(data)


def test_a_manifest_of_another_version_asks_for_an_upgrade() -> None:
    with pytest.raises(InvalidSpec, match="version 2"):
        load_manifest(b'{"version":2,"files":[]}')


def test_a_file_name_that_is_not_unicode_has_no_manifest_id() -> None:
    with pytest.raises(InvalidSpec, match="Unicode"):
        manifest_id(Manifest.model_construct(version=1, files=[entry("a\udcff")]))


def test_each_hash_is_named_once_in_order() -> None:
    one, two = (Chunk(hash=c * 64, size=1) for c in "ab")
    manifest = Manifest(files=[FileEntry(path="x", size=3, chunks=[two, one, two])])
    assert list(chunk_hashes(manifest)) == ["b" * 64, "a" * 64]


@pytest.mark.parametrize("bad", ["a" * 63, "A" * 64, "a" * 64 + "\n", "\n" + "a" * 64, "../" + "a" * 61, ""])
def test_what_is_no_hash_never_becomes_a_chunk(bad: str) -> None:
    with pytest.raises(ValidationError):
        Chunk(hash=bad, size=1)
