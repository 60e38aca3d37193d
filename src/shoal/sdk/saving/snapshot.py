"""A copy of everything at one instant, most of it made while training goes on.

Parameters and optimizer state change only in optimizer.step, so they may be copied during the next forward and backward
pass; the step waits for the copy. Everything else is copied at once. Should something write to a parameter in between, its
version tells, and the copy is thrown away.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")

_LATE = 64 << 10
"""Bytes from which copying later is worth the trouble."""
_PIECE = 64 << 20


class Buffers:
    """Memory for copies, kept from one save to the next: fresh memory costs more than the copying."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], Any] = {}

    def like(self, path: tuple[str, ...], tensor: Any) -> Any:
        kept = self._kept.get(path)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            pinned = tensor.device.type == "cuda"
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
            self._kept[path] = kept
        return kept


class Snapshot:
    """Of `files`: file name → nest of dicts, lists and tensors. `late` are addresses of storages that only a step changes."""

    def __init__(self, step: int, files: Mapping[str, Any], late: set[int], buffers: Buffers, *, overlap: bool = True):
        self.step = step
        self._late, self._buffers = late if overlap else set(), buffers
        self._pairs: list[tuple[Any, Any, int]] = []
        self._seen: dict[tuple[Any, ...], Any] = {}
        self.files = {name: self._copy((name,), value) for name, value in files.items()}
        self._error: BaseException | None = None
        self._stream = _side_stream(self._pairs)
        self._thread: threading.Thread | None = None
        if self._pairs:
            self._thread = threading.Thread(target=self._run, name="shoal-snapshot", daemon=True)
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
        # Tied weights are one tensor under two names; they are copied and written once.
        key = (source.data_ptr(), source.device, source.dtype, source.shape, source.stride())
        if key in self._seen:
            return self._seen[key]
        target = self._seen[key] = self._buffers.like(path, source)
        if _is_late(source, self._late):
            self._pairs.append((source, target, source._version))
        else:
            target.copy_(source)
        return target

    def _run(self) -> None:
        try:
            if self._stream is None:
                for source, target, _ in self._pairs:
                    _move(source, target)
                return
            with torch.cuda.stream(self._stream):
                for source, target, _ in self._pairs:
                    target.copy_(source, non_blocking=True)
            self._stream.synchronize()
        except BaseException as error:
            self._error = error


class Watch:
    """On ranks that copy nothing: notices the same writes as the rank that copies, so that all of them save again."""

    def __init__(self, files: Mapping[str, Any], late: set[int]):
        self._versions = [(t, t._version) for t in _tensors(files) if _is_late(t, late)]

    def is_unchanged(self) -> bool:
        return all(tensor._version == version for tensor, version in self._versions)


def storages(value: Any) -> set[int]:
    """Addresses of all storages in a nest."""
    return {t.untyped_storage().data_ptr() for t in _tensors(value) if t.layout == torch.strided}


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    for item in items:
        yield from _tensors(item)


def _is_late(tensor: Any, late: set[int]) -> bool:
    if tensor.layout != torch.strided or tensor.nbytes < _LATE or tensor.is_inference():
        return False
    return tensor.untyped_storage().data_ptr() in late


def _move(source: Any, target: Any) -> None:
    """memmove, because torch's own copy would start another set of threads beside those that train."""
    if source.device.type != "cpu" or not source.is_contiguous():
        target.copy_(source)
        return
    size, start, end = source.nbytes, source.data_ptr(), target.data_ptr()
    for at in range(0, size, _PIECE):
        ctypes.memmove(end + at, start + at, min(_PIECE, size - at))


def _side_stream(pairs: list[tuple[Any, Any, int]]) -> Any:
    """A stream that begins where the training's has come to; None without CUDA."""
    device = next((source.device for source, _, _ in pairs if source.device.type == "cuda"), None)
    if device is None:
        return None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream
