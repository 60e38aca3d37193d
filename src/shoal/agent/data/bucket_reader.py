"""Files of a bucket: listed once, then read in blocks that are kept in memory for a while."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

from shoal.core.s3_url import S3Url

BLOCK = 4 << 20
MOST_BLOCKS = 32
_THREADS = 8


class Object(NamedTuple):
    """A file of the bucket."""

    path: str
    """Path below the prefix."""
    size: int
    etag: str | None
    modified: float
    """Seconds since 1970."""


class BucketReader:
    """Reads the objects below a prefix. Safe to use from several threads.

    A block is fetched once, however many threads want it: the first puts a Future in `_blocks`, under `_lock`, and the others
    wait for it. A fetch that failed is removed before its Future gets the error, so that the next read tries again.
    """

    def __init__(self, place: S3Url, keys: dict[str, str]):
        self._place, self._store = place, _open(place, keys)
        self._pool = ThreadPoolExecutor(_THREADS, "bucket")
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], Future[bytes]] = OrderedDict()
        self._last: dict[str, int] = {}
        """Path → the block that was read last."""

    def objects(self) -> Iterator[Object]:
        """Yield all objects below the prefix."""
        import obstore

        prefix = f"{self._place.prefix}/" if self._place.prefix else None
        for page in obstore.list(self._store, prefix=prefix, chunk_size=1000):
            for meta in page:
                path = meta["path"].removeprefix(prefix or "")
                if path and meta["path"] != prefix:
                    yield Object(path, meta["size"], meta["e_tag"], meta["last_modified"].timestamp())

    def read(self, file: Object, start: int, size: int) -> bytes:
        """Return up to `size` bytes from `start`; fewer only at the end of the file."""
        end = min(start + size, file.size)
        found = bytearray()
        while start + len(found) < end:
            at = start + len(found)
            number = at // BLOCK
            offset = at - number * BLOCK
            found += self._block(file, number)[offset : offset + end - at]
        return bytes(found)

    def _block(self, file: Object, number: int) -> bytes:
        with self._lock:
            is_sequential = self._last.get(file.path) in (number - 1, number) or number == 0
            self._last[file.path] = number
            wanted = self._wanted(file, number)
            if is_sequential and (number + 1) * BLOCK < file.size:
                self._wanted(file, number + 1)
        return wanted.result()

    def _wanted(self, file: Object, number: int) -> Future[bytes]:
        key = (file.path, number)
        found = self._blocks.get(key)
        if found is None:
            found = self._blocks[key] = self._pool.submit(self._fetch, file, number)
            while len(self._blocks) > MOST_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return found

    def _fetch(self, file: Object, number: int) -> bytes:
        import obstore

        start = number * BLOCK
        end = min(start + BLOCK, file.size)
        try:
            options: Any = {"range": (start, end)} | ({"if_match": file.etag} if file.etag else {})
            data = bytes(obstore.get(self._store, self._key(file), options=options).bytes())
            if len(data) != end - start:
                raise OSError(f"{file.path} gave {len(data)} bytes where {end - start} were requested")
            return data
        except BaseException:
            with self._lock:
                self._blocks.pop((file.path, number), None)
            raise

    def _key(self, file: Object) -> str:
        return f"{self._place.prefix}/{file.path}" if self._place.prefix else file.path


def copy_all(reader: BucketReader, files: list[Object], folder: str, say: Callable[[int], None]) -> None:
    """Copy all files to a folder; `say` is called with the bytes of each file that is complete."""
    for file in files:
        path = os.path.join(folder, file.path)  # noqa: PTH118
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "wb") as out:  # noqa: PTH123
            for start in range(0, file.size, BLOCK):
                out.write(reader.read(file, start, BLOCK))
        say(file.size)


def _open(place: S3Url, keys: dict[str, str]) -> Any:
    """Return obstore's client. Without the job's own keys requests are not signed: the machine's keys are not the job's."""
    from obstore.store import S3Store

    region = place.region or "us-east-1"
    endpoint = place.endpoint or f"https://s3.{region}.amazonaws.com"
    config: dict[str, Any] = {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint, "region": region}
    if "AWS_ACCESS_KEY_ID" in keys:
        credential = {
            "access_key_id": keys["AWS_ACCESS_KEY_ID"],
            "secret_access_key": keys.get("AWS_SECRET_ACCESS_KEY", ""),
            "token": keys.get("AWS_SESSION_TOKEN"),
            "expires_at": None,
        }
        config["credential_provider"] = lambda: credential
    else:
        config["skip_signature"] = True
    options: Any = {"allow_http": endpoint.startswith("http://"), "connect_timeout": timedelta(seconds=10)}
    retries: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
    return S3Store(
        place.bucket, virtual_hosted_style_request=False, client_options=options, retry_config=retries, **config
    )
