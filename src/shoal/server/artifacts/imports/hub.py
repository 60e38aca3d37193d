"""Datasets of the Hugging Face Hub, through its HTTP API: `hf://datasets/ORG/NAME[@REVISION][/path]`.

The revision is pinned to a commit before anything is fetched, and every file is compared with the digest the Hub lists.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from shoal.core.errors import Corrupt, Forbidden, InvalidSpec, NotFound, Refused
from shoal.server.artifacts.imports.fetch import fetcher
from shoal.server.artifacts.imports.http_answers import BadStatus
from shoal.server.artifacts.imports.plan import Plan, RemoteFile, make_plan
from shoal.server.context import Context
from shoal.server.ssrf_guard import PORTS
from shoal.store.pack import Progress

_URL = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[^/@]+))?(?:/(?P<path>.*))?"
)
_LISTING_BYTES = 64 << 20
_API = "/api/datasets/"
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')


@dataclass(frozen=True, slots=True)
class HubPlace:
    """Dataset of the Hub at a revision, or a part of it."""

    repo: str
    revision: str
    path: str
    """File or folder in the dataset; empty for all."""


def parse_hub_url(text: str) -> HubPlace:
    match = _URL.fullmatch(text)
    if match is None or any(set(part) == {"."} for part in match["repo"].split("/")):
        raise InvalidSpec(f"{text!r} is not a dataset of the Hub: give hf://datasets/ORG/NAME[@REVISION][/path].")
    path = (match["path"] or "").strip("/")
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise InvalidSpec(f"{path!r} is not a path in a dataset.")
    return HubPlace(match["repo"], unquote(match["revision"] or "main"), path)


def hub_endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


class Hub:
    """Client of the Hub's HTTP API for one import. Close it when done."""

    def __init__(self, ctx: Context, token: str | None, *, max_bytes: int):
        self._endpoint = hub_endpoint()
        parts = urlsplit(self._endpoint)
        if parts.scheme not in PORTS or not parts.hostname:
            raise Refused("This server's HF_ENDPOINT is not an http(s) URL.")
        # Set by the operator, so it may be a mirror in the private network; its redirects are checked like any other URL.
        trusted = frozenset({(parts.hostname, parts.port or PORTS[parts.scheme])})
        self._lists = fetcher(ctx, max_bytes=_LISTING_BYTES, trusted=trusted)
        self._files = fetcher(ctx, max_bytes=max_bytes, trusted=trusted)
        self._max_bytes = max_bytes
        secure = parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")
        self._headers = {"Authorization": f"Bearer {token}"} if token and secure else {}

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self._lists.close()
        self._files.close()

    def plan(self, place: HubPlace) -> Plan:
        about, _ = self._page(place, f"{_API}{place.repo}/revision/{quote(place.revision, safe='')}")
        commit = str(about.get("sha", "")) if isinstance(about, dict) else ""
        if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
            raise Refused(f"The Hub does not name the commit of {_display_url(place)}.")
        listed = self._files_below(place, commit)
        plan = make_plan(listed, _display_url(place), max_bytes=self._max_bytes, origin={"revision": commit})
        if not plan.files:
            raise NotFound(f"There are no files in {_display_url(place)}.")
        return plan

    def fetch(self, place: HubPlace, commit: str, file: RemoteFile, to: Path, progress: Progress) -> None:
        url = f"{self._endpoint}/datasets/{place.repo}/resolve/{commit}/{quote(file.key)}"
        for last in (False, True):
            with _explained(place):
                fetched = self._files.fetch(url, to, headers=self._headers, progress=progress)
            if fetched.size == file.size and _matches(to, file):
                return
            progress(-fetched.size)
            _forget(to)
            if last:
                raise Corrupt(f"{file.key} of {_display_url(place)} does not match the digest the Hub lists for it.")

    def _files_below(self, place: HubPlace, commit: str) -> Iterator[RemoteFile]:
        folder, strip = place.path, len(place.path) + 1 if place.path else 0
        if folder and (single := self._entry(place, commit)) is not None:
            yield single
            return
        for entry in self._tree(place, commit, folder, recursive=True):
            if entry.get("type") == "file":
                yield _remote(entry, strip)

    def _entry(self, place: HubPlace, commit: str) -> RemoteFile | None:
        """Return the path as a file, or None if it is a folder; raise if there is neither."""
        above = place.path.rpartition("/")[0]
        for entry in self._tree(place, commit, above, recursive=False):
            if entry.get("path") == place.path:
                return _remote(entry, len(above) + 1 if above else 0) if entry.get("type") == "file" else None
        raise NotFound(f"There is no file or folder '{place.path}' in {_display_url(place)}.")

    def _tree(self, place: HubPlace, commit: str, folder: str, *, recursive: bool) -> Iterator[dict[str, Any]]:
        below = f"/{quote(folder)}" if folder else ""
        address = f"{_API}{place.repo}/tree/{commit}{below}?recursive={str(recursive).lower()}&expand=false"
        while address:
            body, link = self._page(place, address)
            if not isinstance(body, list):
                raise Refused(f"The Hub's answer for {_display_url(place)} is not a list of files.")
            yield from (entry for entry in body if isinstance(entry, dict))
            address = link

    def _page(self, place: HubPlace, address: str) -> tuple[Any, str]:
        with _explained(place):
            body, headers = self._lists.read(self._endpoint + address, headers=self._headers)
        match = _NEXT.search(headers.get("link", ""))
        # Mirrors return the Hub's own links. Only the path is used, so the token is sent to no other host.
        following = match[1][match[1].find(_API) :] if match and _API in match[1] else ""
        try:
            return json.loads(body), following
        except ValueError:
            raise Refused(f"The Hub's answer about {_display_url(place)} is not JSON.") from None


@contextmanager
def _explained(place: HubPlace) -> Iterator[None]:
    """Turn the Hub's error responses into errors that say what to do."""
    try:
        yield
    except BadStatus as error:
        code = error.headers.get("x-error-code", "")
        if code == "RevisionNotFound":
            raise NotFound(f"There is no revision '{place.revision}' of {_display_url(place)}.") from error
        if code == "GatedRepo":
            raise Forbidden(
                f"{_display_url(place)} is gated: accept its terms on the Hub and give a token as HF_TOKEN."
            ) from error
        if code == "EntryNotFound":
            raise NotFound(f"There is no '{place.path}' in {_display_url(place)}.") from error
        if error.status in (401, 403, 404):
            raise NotFound(
                f"There is no {_display_url(place)} on the Hub, or it is private and needs a token as HF_TOKEN."
            ) from error
        raise


def _remote(entry: dict[str, Any], strip: int) -> RemoteFile:
    path, lfs = str(entry.get("path", "")), entry.get("lfs")
    size = lfs.get("size") if isinstance(lfs, dict) else entry.get("size")
    digest = f"sha256:{lfs.get('oid')}" if isinstance(lfs, dict) else f"git:{entry.get('oid')}"
    if not isinstance(size, int) or size < 0:
        raise Refused(f"The Hub gives no size for '{path}'.")
    return RemoteFile(path[strip:], path, size, digest)


def _matches(path: Path, file: RemoteFile) -> bool:
    kind, _, expected = file.version.partition(":")
    if kind == "sha256":
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == expected


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".json").unlink(missing_ok=True)


def _display_url(place: HubPlace) -> str:
    return f"hf://datasets/{place.repo}"
