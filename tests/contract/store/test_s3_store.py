"""S3Store keeps the contract of a store, against a real S3-protocol server, also when that one misbehaves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import Forbidden, InvalidSpec, NotFound, Unreachable
from shoal.store.backend import open_store
from shoal.store.blobstore import BlobStore
from shoal.store.check import check, usage
from shoal.store.gc import collect
from shoal.store.hashing import chunk_hash
from shoal.store.pack import pack_tree
from shoal.store.transfer import download, upload
from shoal.testing.store import StoreContract, commit_somehow, made, manifest_of

pytest.importorskip("obstore", reason="S3 tests need the extra 's3'")
from shoal.store.s3 import S3Store


class TestS3Store(StoreContract):
    rounds = 6

    @pytest.fixture
    def opened(self, s3_server: str, bucket: str, tmp_path: Path) -> Iterator[Callable[[], BlobStore]]:
        handles: list[BlobStore] = []

        def open_it() -> BlobStore:
            index = tmp_path / f"index{len(handles)}.db"
            handles.append(
                S3Store(f"s3://{bucket}/some/prefix?endpoint={s3_server}&region=us-east-1", index_path=index)
            )
            return handles[-1]

        yield open_it
        for handle in handles:
            handle.close()


@pytest.fixture
def faulty(proxy: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[BlobStore]:
    monkeypatch.setattr("shoal.store.s3._FIRST_WAIT_S", 0.01)
    store = S3Store(f"s3://{bucket}/p?endpoint={proxy.url}&region=us-east-1", timeout_s=2)
    yield store
    store.close()


@pytest.mark.parametrize("what", ["500", "drop", "cut", "slow", "twice"])
def test_a_request_that_fails_at_first_is_made_again(faulty: BlobStore, proxy: Any, what: str) -> None:
    proxy.fault = lambda method, path, before: what if before == 0 else None
    chunks = {**made(8), **{chunk_hash(d): d for d in (os.urandom(3_000_000), b"single")}}
    commit_somehow(faulty, chunks)
    assert {h: faulty.get(h) for h in chunks} == chunks
    assert proxy.done[what] >= 3
    assert check(faulty).ok


def test_a_service_that_keeps_failing_is_unreachable_and_nothing_is_visible(faulty: BlobStore, proxy: Any) -> None:
    chunks = made(8)
    proxy.fault = lambda method, path, before: "500" if method == "PUT" and "/pending/" not in path else None
    with pytest.raises(Unreachable, match="S3 service"):
        faulty.put_many(chunks.items())
    with pytest.raises(NotFound):
        faulty.put_manifest(manifest_of(chunks))
    proxy.fault = lambda *_: None
    assert list(faulty.list_manifests()) == []
    assert commit_somehow(faulty, chunks)


def test_a_probe_says_whether_a_store_can_be_written_and_leaves_nothing_that_stays(
    faulty: BlobStore, proxy: Any
) -> None:
    faulty.blobs.probe()
    proxy.fault = lambda *_: "500"
    with pytest.raises(Unreachable, match="S3 service"):
        faulty.blobs.probe()
    proxy.fault = lambda *_: None
    faulty.blobs.probe()
    assert [blob.key for blob in faulty.blobs.list("")] == ["tmp/probe"]
    assert check(faulty).ok and usage(faulty).chunks == 0


def test_a_push_through_random_faults_arrives_whole(faulty: BlobStore, proxy: Any, tmp_path: Path) -> None:
    kinds = ["500", "drop", "twice", None, None, None, "cut", None]
    count = iter(range(10**9))
    proxy.fault = lambda method, path, before: kinds[next(count) % len(kinds)] if before < 2 else None
    for n in range(30):
        (tmp_path / "in" / str(n % 3)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / str(n % 3) / f"{n}.bin").write_bytes(os.urandom(1000 * n))
    packed = pack_tree(tmp_path / "in")
    upload(packed, faulty)
    faulty.put_manifest(packed.manifest)
    download(packed.manifest, faulty, tmp_path / "out")
    assert pack_tree(tmp_path / "out").manifest == packed.manifest
    proxy.fault = lambda *_: None
    collect(faulty, grace_s=-3600)
    assert check(faulty).ok
    assert usage(faulty).trash == 0


def test_a_slow_answer_is_given_up_after_the_timeout(bucket: str, proxy: Any) -> None:
    store = S3Store(f"s3://{bucket}?endpoint={proxy.url}&region=us-east-1", timeout_s=0.1)
    proxy.fault = lambda method, path, before: "slow" if method == "GET" else None
    started = time.monotonic()
    with pytest.raises(Unreachable):
        store.get_manifest("0" * 64)
    assert time.monotonic() - started < 10
    store.close()


def test_refused_credentials_are_named(s3_server: str, bucket: str, proxy: Any) -> None:
    store = S3Store(f"s3://{bucket}?endpoint={proxy.url}&region=us-east-1")
    proxy.fault = lambda *_: "403"
    with pytest.raises(Forbidden, match="credentials"):
        store.get("0" * 64)
    store.close()


def test_a_url_may_not_carry_keys_or_unknown_options() -> None:
    for url in ("s3://key:secret@bucket/x", "s3://bucket?access_key_id=x", "s3:///x", "gs://bucket"):
        with pytest.raises(InvalidSpec):
            open_store(url)


def test_the_store_is_opened_by_its_url(s3_server: str, bucket: str) -> None:
    store = open_store(f"s3://{bucket}/x?endpoint={s3_server}&region=us-east-1")
    store.put(chunk_hash(b"x"), b"x")
    assert store.get(chunk_hash(b"x")) == b"x"
    store.close()
