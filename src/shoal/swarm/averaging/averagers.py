"""hivemind's averagers with our checked reduction, open to members only.

Why it is safe: an object exists twice, in the training process and, after the fork, in the averager's process. Coroutines
run only in the latter, on one event loop; `_receipt`, `_admission` and the Reader are used only there. The training process
sets `_robust`, a shared value that is read once at the start of a round, and gets the receipt through hivemind's pipe. A
round whose averager process has died fails in `exchange`. One gap remains: a process that dies between the end of an
exchange and the reply to `receipt` leaves the caller waiting.
"""

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

from shoal.swarm.averaging.all_reduce import GuardedRunner, Receipt
from shoal.swarm.averaging.digests import Announced
from shoal.swarm.averaging.reducer import Combine
from shoal.swarm.dht_records import Admission
from shoal.swarm.records import Reader

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


class Guarded:
    """Mixin for DecentralizedAverager and its subclasses: `guarded(GradientAverager)`.

    All peers of a prefix must use it, because they send each other averages instead of differences.
    """

    def __init__(
        self,
        *args: Any,
        aggregation: str = "mean",
        clip: float | None = None,
        reader: Reader | None = None,
        **options: Any,
    ):
        """`reader` decides which peers are members and may average with us; None admits all peers."""
        self._clip, self._reader = clip, reader
        self._robust = mp.Value(ctypes.c_bool, aggregation == "robust")
        self._admission: Admission | None = None
        self._receipt = Receipt()
        super().__init__(*args, **options)

    def use_aggregation(self, aggregation: str) -> None:
        """Set the aggregation, "mean" or "robust", from the next round on."""
        self._robust.value = aggregation == "robust"

    def receipt(self) -> dict[str, Any]:
        """Return the receipt of the last round that this averager took part in."""
        future = MPFuture()
        self._outer_pipe.send(("_send_receipt", [], {"future": future}))  # type: ignore[attr-defined]
        found: dict[str, Any] = future.result()
        return found

    async def _send_receipt(self, future: Any) -> None:
        future.set_result(asdict(self._receipt))

    async def _refused(self, peers: Sequence[Any]) -> list[Any]:
        """Return the peers that are not members."""
        if self._reader is None:
            return []
        if self._admission is None:
            self._admission = Admission(self.dht, self._reader)  # type: ignore[attr-defined]
        refused = await self._admission.refused([str(peer) for peer in peers])
        return [peer for peer in peers if str(peer) in refused]

    def _announced(self, group_info: Any) -> Announced | None:
        """Return what the members of a group announced about their updates; None if they announce nothing."""
        return None

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        if await self._refused([context.remote_id]):
            logger.warning("refused to average with %s: it is not a member", context.remote_id)
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
        """Join a leader's group unless the leader is not a member: the group would miss the leader's share of every average."""
        return None if await self._refused([leader]) else await follow(leader)

    async def _run_allreduce_inplace_(
        self, tensors: Sequence[Tensor], group_info: Any, group_id: bytes | None = None, **options: Any
    ) -> None:
        group_id = group_info.group_id if group_id is None else group_id
        own: Any = self
        runner = GuardedRunner(
            combine=Combine("robust" if self._robust.value else "mean", self._clip),
            announced=self._announced(group_info),
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
                logger.warning("the parts of peer %s were refused: %s", peer, reason)


@cache
def guarded(kind: type) -> type:
    """Return a subclass of the averager with the checks of `Guarded`."""
    return type(f"Guarded{kind.__name__}", (Guarded, kind), {"__module__": __name__})


class GuardedAverager(Guarded, DecentralizedAverager):  # type: ignore[misc]
    """hivemind's plain averager with the checks of `Guarded`."""
