"""Streams for torch's DataLoader. Imported only where torch is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from shoal.data.positions import CELLS, Cells
from shoal.data.random_access import MapView
from shoal.data.streams import Stream

torch: Any = import_module("torch")  # untyped, so that type checking does not depend on whether it is installed
data: Any = torch.utils.data


class TorchStream(Stream, data.IterableDataset):  # type: ignore[misc]
    """Stream as an IterableDataset. The start of a pass is in shared memory, so that persistent workers see `set_epoch`."""

    def _cells(self) -> Cells:
        return TensorCells()


class TensorCells:
    def __init__(self) -> None:
        self._values = torch.zeros(CELLS, dtype=torch.int64).share_memory_()

    def get(self, start: int, end: int) -> list[int]:
        found: list[int] = self._values[start:end].tolist()
        return found

    def put(self, start: int, values: list[int]) -> None:
        self._values[start : start + len(values)] = torch.tensor(values)


class TorchMap(MapView, data.Dataset):  # type: ignore[misc]
    """View of the records as a map-style Dataset."""


class Loader(data.DataLoader):  # type: ignore[misc]
    """DataLoader that counts the batches it delivers.

    A state saved between two batches continues with the second one, however many batches are prefetched.
    """

    def __init__(self, stream: Stream, *, batch_size: int | None = 1, num_workers: int = 0, **options: Any):
        stream.batch_size = batch_size or 1
        self.stream = stream
        super().__init__(stream, batch_size=batch_size, num_workers=num_workers, **options)

    def __iter__(self) -> Iterator[Any]:
        if not self.num_workers:
            yield from super().__iter__()
            return
        self.stream.begin_pass()
        for batch in super().__iter__():
            self.stream.advance(self.stream.batch_size)
            yield batch
        self.stream.finish_pass()

    def set_epoch(self, epoch: int) -> None:
        self.stream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.stream.load_state_dict(state)
