"""S3-compatible stores given by users: `s3://bucket/prefix[?endpoint=…&region=…]`, through obstore (extra `s3`).

Keys come from the workspace's secrets. The server's own environment is used on a private server only, the machine's cloud role
never. On a shared server every connection goes through the guarded proxy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from shoal.core import s3_url
from shoal.core.artifacts import check_path
from shoal.core.errors import (
    Forbidden,
    InvalidSpec,
    MissingExtra,
    NotFound,
    Refused,
    Unreachable,
)
from shoal.server.artifacts.imports.fetch import pause
from shoal.server.artifacts.imports.partial_file import PartFile
from shoal.server.artifacts.imports.plan import MAX_FILES, RemoteFile
from shoal.server.artifacts.imports.proxy import GuardedProxy
from shoal.server.ssrf_guard import Guard
from shoal.store.pack import Progress

T = TypeVar("T")

KEY_NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
PART = 8 << 20
_TRIES = 6
_FIRST_WAIT_S = 0.5
_TIMEOUT = timedelta(seconds=120)
_STALL = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class S3Place:
    """Bucket and prefix of an S3 URL."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None

    @property
    def display_url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


class Changed(Refused):
    """An object changed while it was being fetched."""


def parse_s3_url(text: str, guard: Guard) -> S3Place:
    """Return the place that a user's URL names; its endpoint must be one that `guard` permits."""
    found = s3_url.parse_s3_url(text, keys="secrets")
    if found.prefix:
        check_path(found.prefix)
    endpoint = str(guard.parse(found.endpoint)).rstrip("/") if found.endpoint is not None else None
    return S3Place(found.bucket, found.prefix, endpoint, found.region)


def check_obstore() -> None:
    try:
        import obstore  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "S3 URLs need the extra 's3' on the server.", hint="pip install 'shoal-train[s3]'"
        ) from error


class Bucket:
    """S3 bucket opened with the given keys. Close it when done."""

    def __init__(self, place: S3Place, keys: Mapping[str, str], guard: Guard, *, stop: Callable[[], bool]):
        check_obstore()
        self.place, self._keys, self._stop = place, dict(keys), stop
        self._proxy = None if guard.private else GuardedProxy(guard, stop=stop)
        try:
            self._store = self._open(guard.private)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Bucket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()

    def objects(self) -> list[RemoteFile]:
        """Return all objects below the prefix, or the one object it names."""
        import obstore

        prefix = self.place.prefix
        strip = len(prefix) + 1 if prefix else 0

        def listing() -> list[RemoteFile]:
            found: list[RemoteFile] = []
            for page in obstore.list(self._store, prefix or None):
                found += [RemoteFile(o["path"][strip:], o["path"], o["size"], o["e_tag"] or "") for o in page]
                if len(found) > 2 * MAX_FILES:
                    break  # too many, even if half of them represent folders
            return [file for file in found if file.path]

        return self._retried(listing) or self._single()

    def _single(self) -> list[RemoteFile]:
        import obstore

        prefix = self.place.prefix
        if not prefix:
            return []
        try:
            found = self._retried(lambda: obstore.head(self._store, prefix))
        except NotFound:
            return []
        return [RemoteFile(prefix.rpartition("/")[2], prefix, found["size"], found["e_tag"] or "")]

    def fetch(self, file: RemoteFile, to: Path, progress: Progress) -> None:
        """Download an object in ranges that are all of the same version."""
        import obstore

        with PartFile(to) as part:
            if part.version != file.version or part.total != file.size or not file.version:
                part.start(version=file.version or None, total=file.size)
            progress(part.offset)
            while not part.is_complete:
                options: dict[str, Any] = {"range": (part.offset, min(part.offset + PART, file.size))}
                if file.version:
                    options["if_match"] = file.version
                block = self._retried(
                    lambda o=options: bytes(obstore.get(self._store, file.key, options=o).bytes())  # type: ignore[misc]
                )
                if len(block) != options["range"][1] - part.offset:
                    raise Changed(f"{file.path} of {self.place.display_url} changed while it was being fetched.")
                part.write(block)
                progress(len(block))
            part.finish()

    def attributes(self, key: str) -> tuple[int, dict[str, str]] | None:
        """Return the size and metadata of an object below the prefix, or None."""
        import obstore

        def fetch_head() -> tuple[int, dict[str, str]]:
            found = obstore.get(self._store, self._key(key), options={"head": True})
            return found.meta["size"], {name.lower(): str(value) for name, value in found.attributes.items()}

        try:
            return self._retried(fetch_head)
        except NotFound:
            return None

    def put(self, key: str, size: int, content: Callable[[], Iterator[bytes]], metadata: dict[str, str]) -> None:
        """Upload an object, completely or not at all; a failed multipart upload is aborted."""
        import obstore

        part = max(2 * PART, -(-size // 9_000))  # S3 takes at most 10,000 parts

        def send() -> None:
            if size <= part:
                obstore.put(self._store, self._key(key), b"".join(content()), attributes=metadata, use_multipart=False)
            else:
                obstore.put(
                    self._store,
                    self._key(key),
                    content(),
                    attributes=metadata,
                    use_multipart=True,
                    chunk_size=part,
                    max_concurrency=4,
                )

        self._retried(send)

    def _key(self, path: str) -> str:
        return f"{self.place.prefix}/{path}" if self.place.prefix else path

    def _open(self, private: bool) -> Any:
        from obstore.store import S3Store

        place, config = self.place, dict[str, Any]()
        if self._keys:
            # An explicit provider takes precedence over the environment.
            config["credential_provider"] = self._credential
        elif not (private and os.environ.get("AWS_ACCESS_KEY_ID")):
            config["skip_signature"] = True
        endpoint, region = place.endpoint, place.region
        if not private:
            # The server's own AWS_ENDPOINT_URL and AWS_REGION are not for its users.
            region = region or "us-east-1"
            endpoint = endpoint or f"https://s3.{region}.amazonaws.com"
        if endpoint is not None:
            config |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
        if region is not None:
            config["region"] = region
        options: dict[str, Any] = {
            "allow_http": (endpoint or os.environ.get("AWS_ENDPOINT_URL", "")).startswith("http://"),
            "connect_timeout": timedelta(seconds=10),
            "read_timeout": _STALL,
            "timeout": _TIMEOUT,
        }
        if self._proxy is not None:
            options["proxy_url"] = self._proxy.url
        retries = {
            "max_retries": 2,
            "retry_timeout": _TIMEOUT,
            "backoff": {"init_backoff": timedelta(seconds=_FIRST_WAIT_S / 5)},
        }
        config |= {"client_options": options, "retry_config": retries}
        return S3Store(place.bucket, virtual_hosted_style_request=False, **config)

    def _credential(self) -> dict[str, Any]:
        return {
            "access_key_id": self._keys["AWS_ACCESS_KEY_ID"],
            "secret_access_key": self._keys["AWS_SECRET_ACCESS_KEY"],
            "token": self._keys.get("AWS_SESSION_TOKEN"),
            "expires_at": None,
        }

    def _retried(self, work: Callable[[], T]) -> T:
        for attempt in range(_TRIES):
            try:
                with self._explained():
                    return work()
            except Unreachable:
                if attempt == _TRIES - 1:
                    raise
                pause(_FIRST_WAIT_S * 2**attempt, self._stop)
        raise AssertionError

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self._proxy is not None and self._proxy.refusal is not None:
                raise self._proxy.refusal from error
            raise self._meaning(error) from error

    def _meaning(self, error: Exception) -> Exception:
        from obstore import exceptions

        where, status = self.place.display_url, _status(error)
        if isinstance(error, FileNotFoundError) or status == 404:
            return NotFound(f"There is nothing at {where}, or no bucket '{self.place.bucket}'.")
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError) or status in (
            401,
            403,
        ):
            return Forbidden(_refused(where, bool(self._keys)))
        if isinstance(error, exceptions.PreconditionError):
            return Changed(f"{where} changed while it was being fetched.")
        if isinstance(error, exceptions.InvalidPathError):
            return InvalidSpec(f"{where} contains an object whose key cannot be the path of a file.")
        if status in (301, 307, 400):
            region = self.place.region or "not given"
            return Refused(
                f"The S3 service refused the request for {where} ({status}); is the region ({region}) right?"
            )
        if isinstance(error, exceptions.BaseError):
            return Unreachable(f"The S3 service of {where} gave an unexpected answer: {_first_line(error)}")
        return error


def check_keys(names: Mapping[str, str]) -> None:
    """Check a user's `credentials` (environment variable → name of a secret); raise if they are unknown or incomplete."""
    if unknown := sorted(names.keys() - set(KEY_NAMES)):
        raise InvalidSpec(f"{unknown[0]!r} is not a credential for S3: give {', '.join(KEY_NAMES)}.")
    if names and not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= names.keys():
        raise InvalidSpec("Credentials for S3 are both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.")


def _refused(where: str, with_keys: bool) -> str:
    if with_keys:
        return f"The S3 service refused the given credentials for {where}."
    return f"{where} is not open to everyone: give credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)."


def _status(error: Exception) -> int | None:
    """Return the HTTP status of an error, or None. Failed listings have no class of their own; the status is in the text."""
    match = re.search(r"non-2xx status code: (\d{3})", _first_line(error))
    return int(match[1]) if match else None


def _first_line(error: Exception) -> str:
    # Later lines are internals. URLs in the first line contain no keys: signatures are sent in headers.
    return str(error).strip().partition("\n")[0][:300]
