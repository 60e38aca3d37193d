"""hivemind's all-reduce of one round, changed so that all peers get bit-identical results.

The reducer of a chunk sends the same bytes of its average to all peers and decodes its own copy from them too. hivemind
sends each peer a difference to its own values instead, and the peers drift apart.

Why it is safe: a runner lives for one round, on the event loop of the averager's process. The parts of a peer are handled by
one coroutine each; they meet only in the reducer, which changes its state between two `await`s. Executor threads only
decode messages (`open_tensor`, a pure function). When a peer fails or is refused, it is banned: the reducer no longer waits
for it, and its share keeps our own values (`register_failed_reducer`). A crash leaves nothing behind: the tensors are
copied back by the averager, and a peer with other values is found by its state's hash.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hivemind.averaging.allreduce import AllReduceRunner
from hivemind.averaging.partition import AllreduceException, BannedException
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import aiter_with_timeout, amap_in_executor, attach_event_on_finished

from shoal.swarm.averaging.digests import Announced
from shoal.swarm.averaging.reducer import Combine, GuardedReducer
from shoal.swarm.averaging.wire import BadTensor, open_tensor

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 20.0
"""Maximum length of an average as a multiple of our own part. It is large because a peer with few steps sends short parts."""


@dataclass
class Receipt:
    """Result of one round of averaging from this peer's view."""

    averaged: float = 0.0
    """Share of our values that was averaged, from 0 to 1."""
    bytes_in: int = 0
    bytes_out: int = 0
    members: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """p2p id → reason why the peer's parts were refused."""
    odd: list[str] = field(default_factory=list)
    """p2p ids whose parts were outliers in most of the chunks reduced here."""
    judged: bool = False
    """True if chunks were reduced here, so that the parts of all members were seen."""


class GuardedRunner(AllReduceRunner):  # type: ignore[misc]
    """All-reduce runner that checks every part, refuses strangers and yields averages instead of differences."""

    tensor_part_reducer: Any

    def __init__(
        self,
        *,
        combine: Combine,
        strangers: Sequence[PeerID] = (),
        announced: Announced | None = None,
        **options: Any,
    ):
        """`announced`: what the members announced, against which their parts are checked; None: no check."""
        super().__init__(**options)
        self.receipt = Receipt(members=[str(peer) for peer in self.ordered_peer_ids])
        container, own = self.tensor_part_container, self.ordered_peer_ids.index(self.peer_id)
        container.return_deltas = False
        infos = [info for _, info in container._input_parts_by_peer[own]]

        def seal(number: int, average: Tensor) -> Any:
            return container.compression.compress(average, infos[number])

        self.tensor_part_reducer.finished.set()  # keeps the replaced reducer from warning of missing parts
        shapes = tuple(part.shape for part in self.parts_for_local_averaging)
        self.tensor_part_reducer = GuardedReducer(shapes, len(self.sender_peer_ids), combine, seal)
        self._combine, self._announced = combine, announced
        self._first_part = sum(container.num_parts_by_peer[:own])
        """Number of the first part that is reduced here, among the parts of the whole update."""
        self._strangers = {peer for peer in strangers if peer != self.peer_id}
        for peer in self._strangers:
            self._refuse(peer, "it is not a member")
            self.active_senders.add(peer)
        if self.active_senders.issuperset(self.sender_peer_ids):
            self.all_senders_started.set()

    def finish_receipt(self) -> Receipt:
        """Complete the receipt at the end of the round and return it."""
        reducer, container = self.tensor_part_reducer, self.tensor_part_container
        self.receipt.averaged = 1.0 - container.failed_size / max(1, container.total_size)
        self.receipt.judged = reducer.num_parts > 0
        self.receipt.odd = [
            str(self.sender_peer_ids[i]) for i, chunks in reducer.odd.items() if 2 * chunks > reducer.num_parts
        ]
        return self.receipt

    def _check_reasons_to_reject(self, request: Any, context: P2PContext) -> Any:
        if context.remote_id in self._strangers:
            return averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
        return super()._check_reasons_to_reject(request, context)

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        index = self.ordered_peer_ids.index(peer_id)
        if peer_id in self._strangers:
            self.tensor_part_container.register_failed_reducer(index)
        elif peer_id == self.peer_id:
            await self._reduce_own(index)
        else:
            try:
                await self._exchange(peer_id, index)
            except BaseException as error:
                if isinstance(error, BadTensor):
                    self.receipt.refused[str(peer_id)] = f"bad average: {error}"
                self.tensor_part_container.register_failed_reducer(index)
                raise

    async def _reduce_own(self, index: int) -> None:
        sender = self.sender_peer_ids.index(self.peer_id)
        for number, part in enumerate(self.parts_for_local_averaging):
            try:
                _, average = await self.tensor_part_reducer.accumulate_part(sender, number, part, self.weight)
            except BadTensor as error:
                # The round continues without us. We keep our own values, which the state's hash will reveal.
                await self._drop(self.peer_id, str(error))
                self.tensor_part_container.register_failed_reducer(index)
                return
            self.tensor_part_container.register_processed_part(index, number, average)

    async def _exchange(self, peer_id: PeerID, index: int) -> None:
        """Send our parts to a reducer and register the averages it returns."""
        sent, container = asyncio.Event(), self.tensor_part_container
        parts = [part for part, _ in container._input_parts_by_peer[index]]
        inputs = attach_event_on_finished(self._generate_input_for_peer(index), sent)
        stream = await self._get_peer_stub(peer_id).rpc_aggregate_part(inputs)
        if self.should_delay_results(self.peer_id):
            await sent.wait()
        number = 0
        async for message in aiter_with_timeout(stream, self.reducer_timeout):
            if message.code != averaging_pb2.AVERAGED_PART:
                raise AllreduceException(f"{peer_id} sent {averaging_pb2.MessageCode.Name(message.code)}")
            if number >= len(parts):
                raise BadTensor("there are more parts than we sent")
            self.receipt.bytes_in += len(message.tensor_part.buffer)
            container.register_processed_part(index, number, self._open_average(message.tensor_part, parts[number]))
            number += 1
        if number != len(parts):
            raise AllreduceException(f"{peer_id} sent {number} parts instead of {len(parts)}")

    def _open_average(self, message: Any, own: Tensor) -> Tensor:
        """Decode a reducer's average; raise BadTensor if it is implausible, because a reducer may lie too.

        Only robust averages can be checked by length: they are never much longer than honest parts.
        """
        average = open_tensor(message, own.shape)
        if self._combine.aggregation == "robust" and average.norm() > LONGEST * own.norm():
            raise BadTensor(f"it is more than {LONGEST:.0f} times as long as our own part")
        return average

    async def _generate_input_for_peer(self, peer_index: int) -> AsyncIterator[Any]:
        async for message in super()._generate_input_for_peer(peer_index):
            self.receipt.bytes_out += len(message.tensor_part.buffer)
            yield message

    async def _accumulate_parts_streaming(self, stream: AsyncIterator[Any], sender_index: int) -> AsyncIterator[Any]:
        number, reducer, sender = 0, self.tensor_part_reducer, self.sender_peer_ids[sender_index]
        try:
            async for part, weight, size in amap_in_executor(
                lambda m: (open_tensor(m.tensor_part), m.weight, len(m.tensor_part.buffer)),
                stream,
                max_prefetch=self.tensor_part_container.prefetch,
            ):
                self.receipt.bytes_in += size
                self._check_announced(sender, self._first_part + number, part)
                try:
                    message, _ = await reducer.accumulate_part(sender_index, number, part, weight=weight)
                except BannedException:
                    break
                number += 1
                self.receipt.bytes_out += len(message.buffer)
                yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=message)
        except BadTensor as error:
            await self._drop(sender, str(error))
            raise
        finally:
            if number != reducer.num_parts:
                await self._ban_sender(sender)

    def _check_announced(self, sender: PeerID, number: int, part: Tensor) -> None:
        problem = self._announced.problem(str(sender), number, part) if self._announced is not None else None
        if problem is not None:
            raise BadTensor(problem)

    async def _drop(self, peer: PeerID, reason: str) -> None:
        self.receipt.refused.setdefault(str(peer), reason)
        await self._ban_sender(peer)

    def _refuse(self, peer: PeerID, reason: str) -> None:
        self.receipt.refused[str(peer)] = reason
        if peer in self.sender_peer_ids and peer not in self.banned_senders:
            self.banned_senders.add(peer)
            self.tensor_part_reducer.on_sender_failed(self.sender_peer_ids.index(peer))
