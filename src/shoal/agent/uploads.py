"""Bringing packed files to the server: commit, send what it lacks, commit again; through any outage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from shoal.agent.link import Link, backoff
from shoal.core.errors import Unreachable

if TYPE_CHECKING:
    from shoal.store.pack import PackedTree

_BATCH = 16 << 20
_BATCH_COUNT = 512


def commit(
    link: Link, path: str, body: dict[str, Any], packed: PackedTree, check: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Until the server has taken it; `check` is called between tries and may raise."""
    for wait in backoff(0.1, 10.0):
        try:
            reply = link.post(path, body)
            missing = reply.get("missing") or []
            if not missing:
                return reply
            for frames in _batches(packed, missing):
                check()
                link.post_bytes("/chunks", frames)
        except Unreachable:
            check()
            time.sleep(wait)
    raise AssertionError("backoff never ends")


def _batches(packed: PackedTree, hashes: list[str]) -> Iterator[bytes]:
    from shoal.store.wire import encode_frames

    batch: list[str] = []
    size = 0
    for name in hashes:
        batch.append(name)
        size += packed.where[name][2]
        if size >= _BATCH or len(batch) >= _BATCH_COUNT:
            yield b"".join(encode_frames((h, packed.read(h)) for h in batch))
            batch, size = [], 0
    if batch:
        yield b"".join(encode_frames((h, packed.read(h)) for h in batch))
