"""Sharded state: each rank writes and reads its own part of the tensors, in the format of torch.distributed.checkpoint.

A state is split into tensors, of which each rank writes what it holds, and a skeleton: the same nest with a marker in the
place of each of these tensors. Two lists say what is in which file: `shards.json`, which Shoal reads, and `.metadata`, a
pickle for `torch.distributed.checkpoint.load`, which Shoal only writes. Another number of ranks reads the pieces it needs.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.errors import Refused
from shoal.sdk.saving.archive import Output, append_archive

torch: Any = import_module("torch")

INDEX, SKELETON, METADATA = "shards.json", "state.pt", ".metadata"
SUFFIX = ".distcp"
_MARK = "__shard__"
_SMALL = 64 << 10
"""Bytes below which a whole tensor of an optimizer stays in the skeleton; there are thousands of step counters."""
_PIECE = 32 << 20


class Piece(NamedTuple):
    """The part of one tensor that this rank holds."""

    local: Any
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    offsets: tuple[int, ...]
    """Index in the whole tensor at which this part begins."""
    is_mine: bool
    """True on the one rank that writes this part; ranks with copies of it do not."""
    is_sharded: bool


class Split(NamedTuple):
    skeleton: dict[str, Any]
    pieces: dict[str, Piece]
    aliases: dict[str, str]
    """Tensors that are others under a second name (tied weights), with the first name."""

    def kept(self) -> Split:
        """Return what is needed to write copies of the tensors, without the tensors themselves."""
        pieces = {key: piece._replace(local=None) for key, piece in self.pieces.items()}
        return Split({}, pieces, self.aliases)

    def late(self) -> tuple[list[Any], set[int]]:
        """Return the tensors that only an optimizer step changes, and the addresses of their storages."""
        found = [piece.local for piece in self.pieces.values() if piece.is_sharded]
        return found, {tensor.untyped_storage().data_ptr() for tensor in found}

    def mine(self) -> dict[str, Any]:
        """Return the tensors that this rank writes."""
        return {key: piece.local for key, piece in self.pieces.items() if piece.is_mine and piece.local.numel()}


def split(files: Mapping[str, Any], tied: Mapping[str, Mapping[str, str]], *, is_main: bool) -> Split:
    """Split the contents of a checkpoint's files. Every rank gets the same skeleton and keys, in the same order.

    Args:
        files: File name → nest of dicts, lists and tensors; sharded tensors are DTensors.
        tied: File name → names of tied weights, with the name that is saved.
        is_main: True on the rank that writes the tensors that all ranks hold.
    """
    pieces: dict[str, Piece] = {}
    aliases = {
        f"{_stem(file)}.{name}": f"{_stem(file)}.{first}"
        for file, names in tied.items()
        for name, first in names.items()
    }

    def visit(path: str, value: Any, *, keep_small: bool) -> Any:
        if isinstance(value, dict):
            return {key: visit(f"{path}.{key}", item, keep_small=keep_small) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [visit(f"{path}.{number}", item, keep_small=keep_small) for number, item in enumerate(value)]
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
            return value
        is_sharded = hasattr(value, "device_mesh")
        if not is_sharded and (not value.numel() or (keep_small and value.nbytes < _SMALL)):
            return value.detach()
        if path not in aliases:
            pieces[path] = _sharded(value.detach(), len(pieces)) if is_sharded else _whole(value.detach(), is_main)
        return marker_of(path)

    skeleton = {
        name: visit(_stem(name), value, keep_small=not name.startswith("model")) for name, value in files.items()
    }
    return Split(skeleton, pieces, {alias: first for alias, first in aliases.items() if first in pieces})


def write_part(path: Path, mine: Mapping[str, Any], of: Split) -> dict[str, Any]:
    """Write this rank's tensors to a new file and sync it. Return its size and hash, and what is where in it."""
    tensors: dict[str, Any] = {}
    with Output(path) as out:
        for key, tensor in mine.items():
            start, piece = out.at, of.pieces[key]
            if not tensor.is_contiguous() or tensor.untyped_storage().nbytes() != tensor.nbytes:
                tensor = tensor.clone(
                    memory_format=torch.contiguous_format
                )  # the file would hold what is around it, too
            (data,) = append_archive(out, tensor)
            tensors[key] = {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(piece.shape),
                "chunk": [list(piece.offsets), list(tensor.shape), path.name, start, out.at - start, data],
            }
        return {"file": path.name, "tensors": tensors, **out.finish()}


def make_index(parts: Sequence[Mapping[str, Any]], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the contents of shards.json from what all ranks have written. Raise Refused if a tensor is not complete."""
    tensors: dict[str, Any] = {}
    for part in parts:
        for key, said in part["tensors"].items():
            known = tensors.setdefault(key, {"dtype": said["dtype"], "shape": said["shape"], "chunks": []})
            known["chunks"].append(said["chunk"])
    for key, known in tensors.items():
        if sum(math.prod(chunk[1]) for chunk in known["chunks"]) != math.prod(known["shape"]):
            raise Refused(f"The ranks have not written all of {key}.")
    return {"tensors": tensors, "aliases": dict(aliases)}


def pickled_metadata(index: Mapping[str, Any]) -> bytes:
    """Return the contents of `.metadata`, with which torch.distributed.checkpoint.load reads the shards."""
    meta, files = (import_module(f"torch.distributed.checkpoint.{name}") for name in ("metadata", "filesystem"))
    described, storage = {}, {}
    for key, known in _with_aliases(index):
        described[key] = _described(meta, known)
        for offsets, _, file, start, length, _ in known["chunks"]:
            storage[meta.MetadataIndex(key, offsets)] = files._StorageInfo(file, start, length)
    return pickle.dumps(meta.Metadata(state_dict_metadata=described, storage_data=storage))


class Shards:
    """Reader of a sharded checkpoint: fills tensors, or parts of them, whatever ranks have written it."""

    def __init__(self, folder: Path, index: Mapping[str, Any]):
        self._folder, self._known, self._aliases = folder, dict(_with_aliases(index)), index["aliases"]

    @classmethod
    def open(cls, folder: Path) -> Shards:
        return cls(folder, json.loads((folder / INDEX).read_bytes()))

    def shape(self, marker: Mapping[str, str]) -> tuple[int, ...]:
        return tuple(self._found(marker)["shape"])

    def dtype(self, marker: Mapping[str, str]) -> Any:
        return getattr(torch, self._found(marker)["dtype"])

    def is_alias(self, marker: Mapping[str, str]) -> bool:
        """Check whether the tensor is another one under a second name."""
        return marker[_MARK] in self._aliases

    def whole(self, marker: Mapping[str, str]) -> Any:
        """Return the whole tensor, on the CPU."""
        target = torch.empty(self.shape(marker), dtype=self.dtype(marker))
        self.fill(marker, target)
        return target

    def filled(self, nest: Any) -> Any:
        """Return the nest with whole tensors in the place of the markers; tied ones are one tensor."""
        made: dict[str, Any] = {}

        def visit(value: Any) -> Any:
            if is_marker(value):
                key = self._aliases.get(value[_MARK], value[_MARK])
                if key not in made:
                    made[key] = self.whole(value)
                return made[key]
            if isinstance(value, dict):
                return {key: visit(item) for key, item in value.items()}
            return [visit(item) for item in value] if isinstance(value, list) else value

        return visit(nest)

    def fill(self, marker: Mapping[str, str], target: Any) -> None:
        """Read this rank's part of a tensor into a DTensor, or all of it into a plain tensor.

        Raises ValueError if the shape differs, Refused if a file that has a part of it cannot be read here.
        """
        planning = import_module("torch.distributed.checkpoint.planner_helpers")
        meta = import_module("torch.distributed.checkpoint.metadata")
        key, known, target = marker[_MARK], self._found(marker), target.detach()
        if list(target.shape) != known["shape"]:
            raise ValueError(f"{key} has the shape {known['shape']} in the checkpoint and {list(target.shape)} here")
        piece = _sharded(target, 0) if hasattr(target, "device_mesh") else _whole(target, True)
        if not piece.local.numel():
            return
        here = meta.ChunkStorageMetadata(torch.Size(piece.offsets), piece.local.size())
        for item in planning.create_read_items_for_chunk_list(key, _described(meta, known), [here]):
            part = piece.local
            for dim, (at, length) in enumerate(zip(item.dest_offsets, item.lengths, strict=True)):
                part = part.narrow(dim, at, length)
            self._read(known, known["chunks"][item.storage_index.index], item.storage_offsets, part)

    def _found(self, marker: Mapping[str, str]) -> Any:
        try:
            return self._known[marker[_MARK]]
        except KeyError:
            raise Refused(f"{self._folder / INDEX} does not list {marker[_MARK]}.") from None

    def _read(self, known: Mapping[str, Any], chunk: Sequence[Any], offsets: Sequence[int], target: Any) -> None:
        """Copy a part of a saved chunk, beginning at `offsets`, to the target. Rows that are not asked for are not read."""
        _, sizes, file, _, _, data = chunk
        dtype, rest = getattr(torch, known["dtype"]), list(sizes[1:])
        row = math.prod(rest) * dtype.itemsize
        path = self._folder / file
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Refused(
                f"A part of the checkpoint cannot be read by this worker: {path} ({error.strerror}).",
                hint="Workers on several machines need one folder for the checkpoints that all of them see.",
            ) from error
        try:
            if not sizes:
                _read_into(source, data, buffer := torch.empty((), dtype=dtype), path)
                target.copy_(buffer)
                return
            first, count = offsets[0], target.shape[0]
            whole_rows = list(target.shape[1:]) == rest
            if whole_rows and target.device.type == "cpu" and target.dtype == dtype and target.is_contiguous():
                _read_into(source, data + first * row, target, path)
                return
            at_once = max(1, _PIECE // max(1, row))
            for at in range(0, count, at_once):
                rows = min(at_once, count - at)
                _read_into(source, data + (first + at) * row, buffer := torch.empty([rows, *rest], dtype=dtype), path)
                for dim in range(1, len(sizes)):
                    buffer = buffer.narrow(dim, offsets[dim], target.shape[dim])
                target.narrow(0, at, rows).copy_(buffer)
        finally:
            os.close(source)


def marker_of(key: str) -> dict[str, str]:
    """Return what stands for a tensor in a skeleton."""
    return {_MARK: key}


def is_marker(value: Any) -> bool:
    """Check whether a value of a skeleton stands for a tensor in the shards."""
    return isinstance(value, dict) and len(value) == 1 and _MARK in value


def _stem(file: str) -> str:
    return file.removesuffix(".pt")


def _whole(tensor: Any, is_mine: bool) -> Piece:
    return Piece(tensor, tuple(tensor.shape), (0,) * tensor.dim(), is_mine, False)


def _sharded(tensor: Any, number: int) -> Piece:
    """Describe a DTensor. Of the ranks that hold copies of a part, they take turns from tensor to tensor to write it."""
    utils = import_module("torch.distributed.tensor._utils")
    _, offsets = utils.compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local, coordinate = tensor.to_local(), tensor.device_mesh.get_coordinate()
    is_mine = coordinate is not None and all(
        not placement.is_replicate() or coordinate[dim] == number % tensor.device_mesh.size(dim)
        for dim, placement in enumerate(tensor.placements)
    )
    return Piece(local, tuple(tensor.shape), tuple(int(at) for at in offsets), is_mine, True)


def _with_aliases(index: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from index["tensors"].items()
    for alias, first in index["aliases"].items():
        yield alias, index["tensors"][first]


def _described(meta: Any, known: Mapping[str, Any]) -> Any:
    chunks = [
        meta.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes, *_ in known["chunks"]
    ]
    properties = meta.TensorProperties(dtype=getattr(torch, known["dtype"]))
    return meta.TensorStorageMetadata(properties, torch.Size(known["shape"]), chunks)


def _read_into(source: int, at: int, target: Any, path: Path) -> None:
    """Read a contiguous tensor on the CPU from a file, without a copy in between."""
    size = target.numel() * target.dtype.itemsize
    memory = memoryview((ctypes.c_char * size).from_address(target.data_ptr())).cast("B") if size else memoryview(b"")
    while memory:
        count = os.preadv(source, [memory[: 1 << 30]], at)
        if not count:
            raise Refused(f"{path} ends before the tensor that the checkpoint's index lists at {at}.")
        memory, at = memory[count:], at + count
