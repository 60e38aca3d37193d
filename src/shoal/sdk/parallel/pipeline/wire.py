"""Messages between the stages of one pipeline: tensors and small objects to neighbours, and broadcasts to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from shoal.sdk.parallel.pipeline.tree import Meta, flatten, put_together


class Wire:
    def __init__(
        self,
        ranks: Sequence[int],
        stage: int,
        device: torch.device,
        tensors: dist.ProcessGroup,
        objects: dist.ProcessGroup,
    ) -> None:
        self.stage, self.stages = stage, len(ranks)
        self.device = device
        self.group = tensors
        self._ranks, self._objects = list(ranks), objects
        self._pending: list[tuple[Any, torch.Tensor]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Wire:
        return self

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Start to send a tensor; `finish` waits for it. Two stages never send to each other at once: no deadlock."""
        plain = tensor.detach().contiguous()
        self._pending.append((dist.isend(plain, self._ranks[to], group=self.group), plain))

    def receive(self, meta: Meta, source: int) -> torch.Tensor:
        tensor = meta.empty(self.device)
        dist.recv(tensor, self._ranks[source], group=self.group)
        return tensor

    def finish(self) -> None:
        """Wait until all tensors are sent."""
        for work, _ in self._pending:
            work.wait()
        self._pending.clear()

    def send_object(self, value: Any, to: int) -> None:
        dist.send_object_list([value], self._ranks[to], group=self._objects)

    def receive_object(self, source: int) -> Any:
        box = [None]
        dist.recv_object_list(box, self._ranks[source], group=self._objects)
        return box[0]

    def send_number(self, value: int, to: int) -> None:
        dist.send(torch.tensor([value], dtype=torch.int64), self._ranks[to], group=self._objects)

    def receive_number(self, source: int) -> int:
        box = torch.empty(1, dtype=torch.int64)
        dist.recv(box, self._ranks[source], group=self._objects)
        return int(box.item())

    def broadcast_object(self, value: Any = None) -> Any:
        """Return the object of the last stage, on every stage."""
        box = [value]
        dist.broadcast_object_list(box, self._ranks[-1], group=self._objects)
        return box[0]

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor of the last stage, on every stage; on the others it is written into `tensor`."""
        whole = tensor.contiguous()
        dist.broadcast(whole, self._ranks[-1], group=self.group)
        return whole

    def send_nest(self, value: Any, to: int) -> None:
        """Send a nest of CPU tensors one by one, without a second copy of all of them in a pickle."""
        tensors: list[torch.Tensor] = []
        shape = flatten(value, tensors)
        self.send_object((shape, [Meta.of(tensor) for tensor in tensors]), to)
        for tensor in tensors:
            dist.send(tensor.detach().contiguous(), self._ranks[to], group=self._objects)

    def receive_nest(self, source: int) -> Any:
        shape, metas = self.receive_object(source)
        tensors = []
        for meta in metas:
            tensor = meta.empty(torch.device("cpu"))
            dist.recv(tensor, self._ranks[source], group=self._objects)
            tensors.append(tensor)
        return put_together(shape, tensors)
