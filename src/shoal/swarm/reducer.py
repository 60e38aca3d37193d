"""The parts of one chunk, kept apart until all are there, looked at, and made one.

A part that is not finite, of another shape or of senseless weight is refused with its sender; in hivemind it ruins the
average, or makes the round wait for ever.
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

from shoal.swarm.guards import check_update, check_weight
from shoal.swarm.robust import mean, odd_ones, robust, shorten_parts
from shoal.swarm.wire import BadTensor

if TYPE_CHECKING:
    from torch import Tensor

torch: Any = import_module("torch")

Seal = Callable[[int, "Tensor"], Any]
"""Part number and its average → the message that carries it."""


@dataclass(frozen=True)
class Combine:
    """How the parts of a chunk become one."""

    aggregation: str = "mean"
    clip: float | None = None
    """Parts longer than so many median lengths are cut to that; robust aggregation has its own measure."""

    def __call__(self, parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        if self.aggregation == "robust":
            return robust(parts, weights)
        return mean(parts if self.clip is None else shorten_parts(parts, self.clip), weights)


class GuardedReducer(TensorPartReducer):  # type: ignore[misc]
    """Keeps the parts of a chunk apart until all are there. What it gives is (message, average as read from it)."""

    def __init__(self, part_shapes: Sequence[Any], num_senders: int, combine: Combine, seal: Seal):
        self._combine, self._seal = combine, seal
        self._held: dict[int, tuple[Tensor, float]] = {}
        self.odd: Counter[int] = Counter()
        """Sender → chunks in which it stood out."""
        super().__init__(part_shapes, num_senders)

    async def accumulate_part(
        self, sender_index: int, part_index: int, tensor_part: Tensor, weight: float = 1.0
    ) -> Any:
        """Refused before it is counted as received: else the round would wait for it."""
        if not 0 <= part_index < self.num_parts:
            raise BadTensor("it sent more parts than there are")
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
            self.odd.update(i for i, odd in zip(senders, odd_ones(parts), strict=True) if odd)
            average = self._combine(parts, weights)
        else:
            average = torch.zeros(self.part_shapes[self.current_part_index])
        message = self._seal(self.current_part_index, average)
        read = deserialize_torch_tensor(message)
        if not torch.isfinite(read).all():  # finite, but beyond what the codec can say
            message = NoCompression().compress(average, CompressionInfo.from_tensor(average))
            read = deserialize_torch_tensor(message)
        self.current_part_future.set_result((message, read))
        self.reset_accumulators()
