"""Loop that writes a few bytes to the store from time to time, so that `/health` reports a store that is away."""

from __future__ import annotations

from shoal.core.background_loops import Loop
from shoal.server.context import Context

NAME = "store"
_LOCAL_EVERY_S, _S3_EVERY_S = 10.0, 60.0


class StoreProbe:
    """The loop. Its problem is that of the store: `failing` with the error, or `late` if the store does not answer."""

    def __init__(self, ctx: Context):
        self._ctx = ctx
        every_s = _S3_EVERY_S if ctx.settings.store else _LOCAL_EVERY_S
        self._loop = Loop("store", self.probe, is_closing=lambda: ctx.live.closing, every_s=every_s)

    def start(self) -> None:
        self._ctx.loops.start(self._loop)

    def stop(self) -> None:
        """Stop the loop without waiting for a store that does not answer."""
        self._loop.stop(timeout_s=1.0)

    def probe(self) -> None:
        self._ctx.store.blobs.probe()
