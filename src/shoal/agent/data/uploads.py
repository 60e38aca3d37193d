"""Uploads packed files to the server: commit, send the missing chunks, commit again; continues after outages.

Why this is safe: `commit` runs in its caller's thread with that thread's link and shares no state. Repeating any step is
harmless: chunks are named by their hash, so sending one twice (or from two nodes) stores it once, and the server creates the
artifact only in a commit with no missing chunks. If the agent dies in between, the server has chunks that nothing refers to,
which its garbage collection removes. A file that changes during the upload raises an error, because each chunk is checked
against its hash when read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.agent.link import Link, backoff, pause_after
from shoal.core.errors import Unreachable

if TYPE_CHECKING:
    from shoal.store.pack import PackedTree

_BATCH = 16 << 20
_BATCH_COUNT = 512


def commit(
    link: Link, path: str, body: dict[str, Any], packed: PackedTree, check: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Commit a tree and upload its chunks until the server has everything; return the server's reply.

    `check` is called before each batch and after each failure; it raises an exception to stop the upload.
    """
    from shoal.store.batches import in_batches
    from shoal.store.commit import commit_until_complete
    from shoal.store.wire import encode_frames

    def send(missing: list[str]) -> None:
        sized = ((name, packed.where[name][2]) for name in missing)
        for batch in in_batches(sized, max_bytes=_BATCH, max_count=_BATCH_COUNT):
            check()
            link.post_bytes("/chunks", b"".join(encode_frames((h, packed.read(h)) for h in batch)))

    for wait in backoff(0.1, 5.0):
        try:
            return commit_until_complete(lambda: link.post(path, body), send, _missing, tries=None)
        except Unreachable as error:
            check()
            time.sleep(pause_after(error, wait))
    raise AssertionError("backoff never ends")


def _missing(reply: dict[str, Any]) -> list[str]:
    return reply.get("missing") or []
