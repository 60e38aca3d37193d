"""Write the weights of a checkpoint as one safetensors file: `python -m shoal.sdk.saving.consolidate CHECKPOINT FOLDER`.

It runs in its own process, because the command line never imports torch. Tensors are read and written one at a time, so that
memory is needed for the largest one only. The folder of a Hugging Face model has its configuration, for `from_pretrained`.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.durable import sync
from shoal.core.errors import Corrupt, NotFound, Refused, ShoalError, UsageError
from shoal.sdk.parallel.names import plain_names
from shoal.sdk.saving import layout, restore
from shoal.sdk.saving.safetensors import NAMES, WEIGHTS, header
from shoal.sdk.saving.shards import Shards, is_marker

torch: Any = import_module("torch")

_PIECE = 64 << 20


class Tensor(NamedTuple):
    """One tensor to write."""

    dtype: str
    shape: list[int]
    read: Callable[[], Any]


def consolidate(checkpoint: Path, folder: Path, model: int = 0) -> dict[str, Any]:
    """Write the weights of a model to a new folder, and the configuration that was saved with it.

    Args:
        checkpoint: Checkpoint that Shoal wrote, sharded or whole.
        folder: Folder to make. It appears when it is complete.
        model: Number of the model, in the order of `prepare`.

    Returns:
        {path, tensors, size, step, files}.
    """
    if not layout.is_ours(checkpoint):
        raise NotFound(f"{checkpoint} is not a checkpoint that shoal.init wrote.", hint="It needs a file shoal.json.")
    if folder.exists():
        raise Refused(f"{folder} exists already.", hint="Name another folder with --destination.")
    try:
        said = layout.verify(checkpoint)
    except ValueError as error:
        raise Corrupt(f"The checkpoint is damaged or not complete: {error}") from error
    file = "model.pt" if model == 0 else f"model-{model}.pt"
    tensors = dict(_tensors(checkpoint, file, said))
    unfinished = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        _write(unfinished / WEIGHTS, tensors)
        training = restore.read_file(checkpoint, "training.pt")
        for name, text in training.get("configs", {}).get(file, {}).items():
            (unfinished / Path(name).name).write_text(text)
            sync(unfinished / Path(name).name)
        sync(unfinished)
        unfinished.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    files = sorted(path.name for path in folder.iterdir())
    size = (folder / WEIGHTS).stat().st_size
    return {"path": str(folder), "tensors": len(tensors), "size": size, "step": said["step"], "files": files}


def _tensors(checkpoint: Path, file: str, said: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a model under their plain names; of tied ones only the first."""
    if layout.is_sharded(said):
        skeleton, index = restore.read_lists(checkpoint)
        state, shards = skeleton.get(file), Shards(checkpoint, index)
    else:
        path = checkpoint / file
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True) if path.exists() else None
        shards = None
    if state is None:
        raise NotFound(f"{checkpoint} has no {file}.")
    seen: set[tuple[Any, ...]] = set()
    for name, value in plain_names(state).items():
        if shards is not None and is_marker(value):
            if not shards.is_alias(value):
                dtype = str(shards.dtype(value)).removeprefix("torch.")
                yield name, Tensor(dtype, list(shards.shape(value)), partial(shards.whole, value))
        elif isinstance(value, torch.Tensor):
            key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
            if not value.numel() or key not in seen:
                seen.add(key)
                dtype = str(value.dtype).removeprefix("torch.")
                yield name, Tensor(dtype, list(value.shape), value.detach().contiguous)


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    sizes: dict[str, tuple[str, list[int], int]] = {}
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise UsageError(f"{name} has the type {tensor.dtype}, which safetensors files cannot hold.")
        size = math.prod(tensor.shape) * getattr(torch, tensor.dtype).itemsize
        sizes[name] = (tensor.dtype, tensor.shape, size)
    with path.open("xb") as out:
        out.write(header(sizes))
        for tensor in tensors.values():
            value = tensor.read()
            size = value.nbytes
            memory = memoryview((ctypes.c_char * size).from_address(value.data_ptr())).cast("B") if size else b""
            for start in range(0, size, _PIECE):
                out.write(memory[start : start + _PIECE])
        out.flush()
        os.fsync(out.fileno())


if __name__ == "__main__":
    try:
        json.dump(consolidate(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])), sys.stdout)
    except ShoalError as error:
        json.dump({"error": error.code, "message": str(error), "hint": error.hint}, sys.stdout)
