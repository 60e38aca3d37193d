"""Sources of chunks to download: the server (many chunks per request), or its store directly if that is on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from shoal.client._http import Http
from shoal.client.store import Store
from shoal.core import system
from shoal.core.datasets import FetchRequest
from shoal.core.errors import Corrupt, NotFound, Unreachable

if TYPE_CHECKING:
    from shoal.store.backend import ChunkStore
    from shoal.store.hashing import Data
    from shoal.store.io.buffers import Buffers

SILENCE_S = 60.0
"""Seconds without a byte after which a download counts as broken."""


class ServerChunks:
    """Chunks from the server, over HTTP."""

    def __init__(self, http: Http, path: str, store: Store):
        self._http, self._path, self._store = http, path, store

    def get_many(self, names: Sequence[str]) -> Iterator[tuple[str, Data]]:
        """Yield (hash, bytes) of each chunk, in any order.

        If an answer breaks off, one chunk is requested alone: its error tells a damaged chunk from a lost connection.
        """
        left = dict.fromkeys(names)
        while len(left) > 1:
            suspect = None
            try:
                for name, data in self._stream(list(left)):
                    if name in left:
                        del left[name]
                        yield name, data
            except (Unreachable, Corrupt) as error:
                suspect = error.details.get("hash")
            if left:
                name = suspect if suspect in left else next(iter(left))
                yield name, self._alone(name)
                del left[name]
        for name in left:
            yield name, self._alone(name)

    def _stream(self, names: list[str]) -> Iterator[tuple[str, Data]]:
        from shoal.store.wire import Fillable, decode_frames, read_frames

        with self._http.receive_bulk(self._path, FetchRequest(hashes=names), silence_s=SILENCE_S) as answer:
            if isinstance(answer, Fillable):
                yield from read_frames(answer, _buffers())
            else:
                yield from decode_frames(answer)

    def _alone(self, name: str) -> bytes:
        from shoal.store.hashing import verify
        from shoal.store.transfer import with_retries

        data = with_retries(lambda: self._store.fetch(name))
        verify(name, data)
        return data


class NearbyChunks:
    """Chunks read directly from the server's store on this machine; the server is asked for those that are not found there."""

    def __init__(self, store: ChunkStore, server: ServerChunks):
        self._local, self._server = store, server

    def get_many(self, names: Sequence[str]) -> Iterator[tuple[str, Data]]:
        left = dict.fromkeys(names)
        try:
            for name, data in self._local.get_many(left, once=True):
                yield name, data
                del left[name]
        except (NotFound, OSError):
            for name in list(left):
                with suppress(NotFound, OSError):
                    yield name, self._local.get(name)
                    del left[name]
        if left:
            yield from self._server.get_many(list(left))


@cache
def _buffers() -> Buffers:
    from shoal.store.io.buffers import Buffers
    from shoal.store.wire import WINDOW

    return Buffers(WINDOW, keep=8)


def nearby_store(url: str) -> ChunkStore | None:
    """Return the store behind this URL if it belongs to our own private server on this machine; otherwise None."""
    from shoal.client.local import read_record
    from shoal.core.settings import Layout

    layout = Layout()
    record = read_record(layout)
    try:
        is_ours = layout.store_dir.stat().st_uid == system.user_id() and os.access(layout.store_dir, os.R_OK | os.X_OK)
    except OSError:
        return None
    if record is None or record.url.rstrip("/") != url or not is_ours:
        return None
    from shoal.store.local import LocalStore

    return LocalStore(layout.store_dir)
