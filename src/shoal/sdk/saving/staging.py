"""Staging: a consistent copy of the training state in host memory, most of it made while training continues.

Parameters and optimizer state change only in optimizer.step, so they may be copied during the next forward and backward
pass; the step waits for the copy. Everything else is copied at once. If something else writes to a parameter meanwhile, its
version counter changes and the copy is discarded.
"""

# Why this is safe: the copy thread reads the sources and writes the buffers; nobody else uses either until `complete` has
# joined the thread. `_pairs` keeps the sources alive and is fixed before the thread starts. On devices with streams (CUDA,
# XPU) the copies run in one side stream per device, which first waits for the training's stream on that device, so they see
# the parameters of this step; the thread ends when every one of these streams is done. A crash loses only the copy.

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")

_LATE = 64 << 10
"""Bytes above which a tensor is copied in the background instead of at once."""
_PIECE = 64 << 20
_STREAMED = ("cuda", "xpu")
"""Kinds of devices that copy in streams of their own. ROCm devices have type cuda."""


class Buffers:
    """Host memory for the copies, reused from save to save: allocating it costs more than copying."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], Any] = {}

    def like(self, path: tuple[str, ...], tensor: Any) -> Any:
        kept = self._kept.get(path)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            pinned = tensor.device.type == "cuda"
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
            self._kept[path] = kept
        return kept


class StagedCopy:
    """Copy of `files` at one instant.

    Args:
        step: Global step.
        files: File name → nest of dicts, lists and tensors.
        late: Addresses of the storages that only an optimizer step changes; they are copied by a thread.
        buffers: Memory to copy to.
        overlap: False copies everything at once.
        least: Bytes above which a tensor is copied by the thread.
    """

    def __init__(
        self,
        step: int,
        files: Mapping[str, Any],
        late: set[int],
        buffers: Buffers,
        *,
        overlap: bool = True,
        least: int = _LATE,
    ):
        self.step, self._least = step, least
        self._late, self._buffers = late if overlap else set(), buffers
        self._pairs: list[tuple[Any, Any, int]] = []
        self._seen: dict[tuple[Any, ...], Any] = {}
        self.files = {name: self._copy((name,), value) for name, value in files.items()}
        self._error: BaseException | None = None
        self._streams = _side_streams(self._pairs)
        self._thread: threading.Thread | None = None
        if self._pairs:
            self._thread = threading.Thread(target=self._run, name="shoal-staging", daemon=True)
            self._thread.start()

    @property
    def is_copying(self) -> bool:
        return self._thread is not None

    def complete(self) -> bool:
        """Wait for the copy, from the training thread; False if something wrote to the tensors meanwhile."""
        if self._thread is None:
            return True
        self._thread.join()
        self._thread = None
        if self._error is not None:
            raise self._error
        pairs, self._pairs = self._pairs, []
        return all(source._version == version for source, _, version in pairs)

    def _copy(self, path: tuple[str, ...], value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(path, value.detach())
        if isinstance(value, dict):
            return {key: self._copy((*path, str(key)), item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            copied = [self._copy((*path, str(i)), item) for i, item in enumerate(value)]
            return copied if isinstance(value, list) else tuple(copied)
        return value

    def _tensor(self, path: tuple[str, ...], source: Any) -> Any:
        if source.layout != torch.strided or source.is_quantized or not source.numel():
            return source.cpu().clone()
        # Tied weights are one tensor under two names: copy and write them once.
        key = (source.data_ptr(), source.device, source.dtype, source.shape, source.stride())
        if key in self._seen:
            return self._seen[key]
        target = self._seen[key] = self._buffers.like(path, source)
        if _is_late(source, self._late, self._least):
            self._pairs.append((source, target, source._version))
        else:
            target.copy_(source)
        return target

    def _run(self) -> None:
        try:
            # First the copies that only have to be started, on all devices; they go on while this thread makes the others.
            for source, target, _ in self._pairs:
                if (stream := self._streams.get(source.device)) is not None:
                    with _module(source.device).stream(stream):
                        target.copy_(source, non_blocking=True)
            for source, target, _ in self._pairs:
                if source.device not in self._streams:
                    _move(source, target)
            for stream in self._streams.values():
                stream.synchronize()
        except BaseException as error:
            self._error = error


class Watch:
    """Detects, on every rank, writes to tensors that this or another rank copies, so that all ranks save again."""

    def __init__(self, files: Mapping[str, Any], late: set[int], least: int = _LATE):
        self._versions = [(t, t._version) for t in _tensors(files) if _is_late(t, late, least)]

    def is_unchanged(self) -> bool:
        return all(tensor._version == version for tensor, version in self._versions)


def storages(value: Any) -> set[int]:
    """Return the addresses of all storages in a nest."""
    return {t.untyped_storage().data_ptr() for t in _tensors(value) if t.layout == torch.strided}


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    for item in items:
        yield from _tensors(item)


def _is_late(tensor: Any, late: set[int], least: int) -> bool:
    if tensor.layout != torch.strided or tensor.nbytes < least or tensor.is_inference():
        return False
    return tensor.untyped_storage().data_ptr() in late


def _move(source: Any, target: Any) -> None:
    """Copy with memmove: torch's own copy would start another pool of threads beside those that train."""
    if source.device.type != "cpu" or not source.is_contiguous():
        target.copy_(source)
        return
    size, start, end = source.nbytes, source.data_ptr(), target.data_ptr()
    for at in range(0, size, _PIECE):
        ctypes.memmove(end + at, start + at, min(_PIECE, size - at))


def _side_streams(pairs: list[tuple[Any, Any, int]]) -> dict[Any, Any]:
    """Return a stream for each device with streams, which starts after the work queued in the training's stream there."""
    streams: dict[Any, Any] = {}
    for source, _, _ in pairs:
        device = source.device
        if device.type in _STREAMED and device not in streams:
            streams[device] = _module(device).Stream(device)
            streams[device].wait_stream(_module(device).current_stream(device))
    return streams


def _module(device: Any) -> Any:
    """Return torch.cuda or torch.xpu."""
    return getattr(torch, device.type)
