"""Reduction of one chunk: its parts are collected, checked and combined when all have arrived.

A part with a wrong shape, an invalid weight or values that are not finite is refused, and so is its sender. In hivemind such
a part ruins the average or blocks the round for ever.

Why it is safe: all methods run on one event loop. `accumulate_part` does not `await` between storing a part and checking
whether the chunk is complete, so exactly one caller completes a chunk and all callers of that chunk await the same future.
A bad part raises before it is counted. When a sender fails, hivemind lowers the number of awaited senders and calls
`check_current_part_finished`, so that the round does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hivemind.averaging.partition import AllreduceException, BannedException, TensorPartReducer
from hivemind.compression import CompressionInfo, NoCompression, deserialize_torch_tensor

from shoal.swarm.averaging.robust import mean, odd_ones, robust, shorten_parts
from shoal.swarm.averaging.wire import BadTensor
from shoal.swarm.update_checks import check_update, check_weight

if TYPE_CHECKING:
    from torch import Tensor

torch: Any = import_module("torch")

Seal = Callable[[int, "Tensor"], Any]
"""Function that encodes the average of a part: (part number, average) → message."""


@dataclass(frozen=True)
class Combine:
    """Rule that combines the parts of a chunk."""

    aggregation: str = "mean"
    clip: float | None = None
    """Maximum length of a part as a multiple of the median; longer ones are scaled down. Robust aggregation ignores it."""

    def __call__(self, parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        if self.aggregation == "robust":
            return robust(parts, weights)
        return mean(parts if self.clip is None else shorten_parts(parts, self.clip), weights)


class GuardedReducer(TensorPartReducer):  # type: ignore[misc]
    """Reducer that collects the parts of a chunk. Its result is (message, average decoded from that message)."""

    def __init__(self, part_shapes: Sequence[Any], num_senders: int, combine: Combine, seal: Seal):
        self._combine, self._seal = combine, seal
        self._held: dict[int, tuple[Tensor, float]] = {}
        self.odd: Counter[int] = Counter()
        """Sender index → number of chunks in which its part was an outlier."""
        super().__init__(part_shapes, num_senders)

    async def accumulate_part(
        self, sender_index: int, part_index: int, tensor_part: Tensor, weight: float = 1.0
    ) -> Any:
        """Add a part and return the chunk's result. A bad part raises BadTensor before it is counted, so no one waits."""
        if not 0 <= part_index < self.num_parts:
            raise BadTensor("it sent too many parts")
        like = torch.empty(self.part_shapes[part_index], device="meta")
        if reason := check_weight(weight) or check_update([tensor_part], [like]):
            raise BadTensor(reason)
        self.num_parts_received[sender_index] += 1
        while part_index > self.current_part_index:
            await asyncio.wait(
                {self.current_part_future, ended := asyncio.ensure_future(self.finished.wait())},
                return_when=asyncio.FIRST_COMPLETED,
            )
            ended.cancel()
            if self.finished.is_set():
                raise AllreduceException("the round is over")
        if self.sender_failed_after[sender_index] != float("inf"):
            raise BannedException(f"sender {sender_index} was dropped")
        result = self.current_part_future
        self._held[sender_index] = (tensor_part, weight)
        self.current_part_accumulated_from += 1
        self.check_current_part_finished()
        return await result

    def check_current_part_finished(self) -> None:
        if self.current_part_accumulated_from < self.num_current_senders or self.current_part_future.done():
            return
        senders = sorted(self._held)
        parts, weights = [self._held[i][0] for i in senders], [self._held[i][1] for i in senders]
        self._held = {}
        if parts:
            self.odd.update(i for i, odd in zip(senders, odd_ones(parts, weights), strict=True) if odd)
            average = self._combine(parts, weights)
        else:
            average = torch.zeros(self.part_shapes[self.current_part_index])
        message = self._seal(self.current_part_index, average)
        read = deserialize_torch_tensor(message)
        if not torch.isfinite(read).all():  # the average is finite, but outside the codec's range
            message = NoCompression().compress(average, CompressionInfo.from_tensor(average))
            read = deserialize_torch_tensor(message)
        self.current_part_future.set_result((message, read))
        self.reset_accumulators()
