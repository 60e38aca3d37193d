"""Averagers that look at what they average: hivemind's, with our reducing, and with members only."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing as mp
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import TYPE_CHECKING, Any, AsyncIterator  # noqa: UP035  hivemind reads the kind of a call from this hint

from hivemind.averaging import DecentralizedAverager
from hivemind.p2p import P2PContext
from hivemind.proto import averaging_pb2
from hivemind.utils import MPFuture, get_dht_time
from hivemind.utils.asyncio import as_aiter, azip

from shoal.swarm.book import Admission
from shoal.swarm.exchange import GuardedRunner, Receipt
from shoal.swarm.records import Reader
from shoal.swarm.reducer import Combine

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


class Guarded:
    """In front of a DecentralizedAverager or one of its kind: `guarded(GradientAverager)`.

    All peers of a prefix must be guarded: what they send each other are averages, not differences.
    """

    def __init__(
        self,
        *args: Any,
        aggregation: str = "mean",
        clip: float | None = None,
        reader: Reader | None = None,
        **options: Any,
    ):
        """`reader`: only those whose members signed for them may average with us; None admits everybody."""
        self._clip, self._reader = clip, reader
        self._robust = mp.Value(ctypes.c_bool, aggregation == "robust")
        self._admission: Admission | None = None
        self._receipt = Receipt()
        super().__init__(*args, **options)

    def use_aggregation(self, aggregation: str) -> None:
        """From the next round on."""
        self._robust.value = aggregation == "robust"

    def receipt(self) -> dict[str, Any]:
        """Of the last round that this averager took part in."""
        future = MPFuture()
        self._outer_pipe.send(("_give_receipt", [], {"future": future}))  # type: ignore[attr-defined]
        found: dict[str, Any] = future.result()
        return found

    async def _give_receipt(self, future: Any) -> None:
        future.set_result(asdict(self._receipt))

    async def _refused(self, peers: Sequence[Any]) -> list[Any]:
        """Those of the peers that are no members."""
        if self._reader is None:
            return []
        if self._admission is None:
            self._admission = Admission(self.dht, self._reader)  # type: ignore[attr-defined]
        refused = await self._admission.refused([str(peer) for peer in peers])
        return [peer for peer in peers if str(peer) in refused]

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        if await self._refused([context.remote_id]):
            logger.warning("%s wanted to average with us, but is no member", context.remote_id)
            yield averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        async for response in super().rpc_join_group(request, context):  # type: ignore[misc]
            yield response

    async def _step(self, **options: Any) -> None:
        matchmaking = self._matchmaking  # type: ignore[attr-defined]
        if not isinstance(matchmaking._request_join_group, partial):
            matchmaking._request_join_group = partial(self._follow, matchmaking._request_join_group)
        await super()._step(**options)  # type: ignore[misc]

    async def _follow(self, follow: Callable[[Any], Awaitable[Any]], leader: Any) -> Any:
        """A group led by a stranger would be missing the stranger's share of every average."""
        return None if await self._refused([leader]) else await follow(leader)

    async def _run_allreduce_inplace_(
        self, tensors: Sequence[Tensor], group_info: Any, group_id: bytes | None = None, **options: Any
    ) -> None:
        group_id = group_info.group_id if group_id is None else group_id
        own: Any = self
        runner = GuardedRunner(
            combine=Combine("robust" if self._robust.value else "mean", self._clip),
            strangers=await self._refused([peer for peer in group_info.peer_ids if peer != own.peer_id]),
            p2p=own._p2p,
            servicer_type=type(self),
            prefix=own.prefix,
            tensors=tensors,
            group_id=group_id,
            ordered_peer_ids=group_info.peer_ids,
            **options,
        )
        own._running_groups[group_id].set_result(runner)
        try:
            async for tensor, average in azip(as_aiter(*tensors), runner):
                tensor.copy_(average)
                own.last_updated = get_dht_time()
                own._state_updated.set()
        finally:
            self._receipt = runner.finish_receipt()
            for peer, reason in self._receipt.refused.items():
                logger.warning("nothing of %s was averaged: %s", peer, reason)


@cache
def guarded(kind: type) -> type:
    """The same kind of averager, guarded."""
    return type(f"Guarded{kind.__name__}", (Guarded, kind), {"__module__": __name__})


class GuardedAverager(Guarded, DecentralizedAverager):  # type: ignore[misc]
    pass
