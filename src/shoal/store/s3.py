"""Store in an S3-compatible bucket, through obstore (extra `s3`; imported only here).

The URL is `s3://bucket/prefix?endpoint=https://…&region=…`. Credentials come from the environment (AWS_ACCESS_KEY_ID, …) or
the machine's role, never from the URL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from shoal.core.errors import Forbidden, MissingExtra, NotFound, Unreachable
from shoal.core.s3_url import parse_s3_url
from shoal.store.blobs import Blob, Blobs
from shoal.store.blobstore import BlobStore
from shoal.store.hashing import Data

try:
    import obstore
    from obstore import exceptions
    from obstore.store import S3Store as Bucket
except ImportError as error:
    raise MissingExtra("S3 stores need the extra 's3'.", hint="pip install 'shoal-train[s3]'") from error

_THREADS = 16
_TRIES = 3
_FIRST_WAIT_S = 0.2

T = TypeVar("T")


class S3Store(BlobStore):
    """Store in a bucket. `index_path` keeps the pack index between runs; without it, the index is read again each time."""

    def __init__(self, url: str, *, index_path: Path | None = None, compress: bool = True, timeout_s: float = 30.0):
        blobs = S3Blobs(url, timeout_s=timeout_s)
        # Listing is slow on S3.
        super().__init__(blobs, index_path=index_path, compress=compress, look_again_s=300.0)


class S3Blobs(Blobs):
    """Blob storage in a bucket."""

    def __init__(self, url: str, *, timeout_s: float = 30.0):
        self.url = url
        self._bucket = _open(url, timeout_s)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="shoal-s3")

    def put(self, items: Sequence[tuple[str, Sequence[Data]]]) -> None:
        def one(item: tuple[str, Sequence[Data]]) -> None:
            data = b"".join(item[1])
            # One request, never multipart: an interrupted multipart upload leaves parts that cost money.
            self._retried(lambda: obstore.put(self._bucket, item[0], data, use_multipart=False))

        self._each(one, items)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""

        def once() -> bytes:
            if start == 0 and length is None:
                return bytes(obstore.get(self._bucket, key).bytes())
            size = obstore.head(self._bucket, key)["size"] - start if length is None else length
            return bytes(obstore.get_range(self._bucket, key, start=start, length=size))

        return self._retried(once)

    def present(self, keys: Iterable[str]) -> set[str]:
        def one(key: str) -> str | None:
            try:
                self._retried(lambda: obstore.head(self._bucket, key))
            except NotFound:
                return None
            return key

        return {key for key in self._each(one, list(keys)) if key is not None}

    def list(self, prefix: str) -> Iterator[Blob]:
        def pages() -> Sequence[Blob]:
            return [
                Blob(found["path"], found["size"], found["last_modified"].timestamp())
                for page in obstore.list(self._bucket, prefix.rstrip("/"))
                for found in page
            ]

        yield from self._retried(pages)

    def move(self, key: str, to: str) -> bool:
        try:
            self._retried(lambda: obstore.copy(self._bucket, key, to))
        except NotFound:
            return False
        self.delete([key])
        return True

    def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        for at in range(0, len(doomed), 1000):
            part = doomed[at : at + 1000]
            try:
                self._retried(lambda part=part: obstore.delete(self._bucket, part))  # type: ignore[misc]
            except NotFound:
                continue

    def close(self) -> None:
        self._pool.shutdown()

    def _each(self, work: Callable[[Any], T], items: Sequence[Any]) -> Sequence[T]:
        if len(items) == 1:
            return [work(items[0])]
        return list(self._pool.map(work, items))

    def _retried(self, work: Callable[[], T]) -> T:
        """Retry a request that failed. obstore retries only requests it knows to be safe, but all of ours are."""
        for attempt in range(_TRIES):
            try:
                with _s3_errors(self.url):
                    return work()
            except Unreachable:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(_FIRST_WAIT_S * 2**attempt)
        raise AssertionError


def _open(url: str, timeout_s: float) -> Bucket:
    place = parse_s3_url(url)
    timeout = timedelta(seconds=timeout_s)
    return Bucket(
        place.bucket,
        prefix=place.prefix or None,
        **place.options,  # type: ignore[arg-type]
        virtual_hosted_style_request=False,
        client_options={
            "allow_http": (place.endpoint or "").startswith("http://"),
            "connect_timeout": timedelta(seconds=min(10.0, timeout_s)),
            "timeout": timeout,
        },
        retry_config={
            "max_retries": 4,
            "retry_timeout": 2 * timeout,
            "backoff": {"init_backoff": timedelta(seconds=_FIRST_WAIT_S / 2)},
        },
    )


@contextmanager
def _s3_errors(url: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound("The store does not hold that object, or the bucket does not exist.") from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise Forbidden(f"The S3 service refused the credentials for {url.partition('?')[0]}.") from error
    except exceptions.BaseError as error:
        raise Unreachable(f"The S3 service returned an error: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
