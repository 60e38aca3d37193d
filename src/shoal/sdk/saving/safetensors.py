"""Headers of safetensors files: a list of tensors, their types and where they begin. Standard library only."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import Corrupt, NotFound

WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint8": "U8", "bool": "BOOL", "uint16": "U16", "uint32": "U32", "uint64": "U64", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""Name of a type in torch → in a safetensors file."""
_TYPES = {short: name for name, short in NAMES.items()}
_MOST = 100 << 20


def read_index(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder, and what is where in its safetensors files, in the form of `shards.json`.

    Raises NotFound if there are none, Corrupt if a header cannot be read.
    """
    folder = path if path.is_dir() else path.parent
    if path.is_dir() and (path / WEIGHTS_INDEX).exists():
        files: Sequence[str] = sorted(set(json.loads((path / WEIGHTS_INDEX).read_bytes())["weight_map"].values()))
    elif path.is_dir():
        files = [WEIGHTS] if (path / WEIGHTS).exists() else sorted(p.name for p in path.glob("*.safetensors"))
    else:
        files = [path.name] if path.exists() else []
    if not files:
        raise NotFound(f"There are no safetensors files in {path}.", hint="shoal checkpoint consolidate writes one.")
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= _described(folder / Path(file).name)
    return folder, {"tensors": tensors, "aliases": {}}


def header(tensors: Mapping[str, tuple[str, Sequence[int], int]]) -> bytes:
    """Return the beginning of a file with these tensors (type, shape and bytes by name), which follow in this order."""
    listed: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, size) in tensors.items():
        listed[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(listed, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _described(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MOST:
                raise Corrupt(f"{path} is not a safetensors file.")
            listed = json.loads(file.read(length))
        return {
            name: {
                "dtype": _TYPES[said["dtype"]],
                "shape": said["shape"],
                "chunks": [
                    [
                        [0] * len(said["shape"]),
                        said["shape"],
                        path.name,
                        0,
                        0,
                        8 + length + said["data_offsets"][0],
                    ]
                ],
            }
            for name, said in listed.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise Corrupt(f"{path} cannot be read as a safetensors file: {type(error).__name__}: {error}") from error
