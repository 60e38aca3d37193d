"""Compare two SDK checkpoints value by value: `python -m shoal.sdk.compare A B [generator…]` prints the differences as JSON.

It runs in its own process, because the command line never imports torch. Only plain values and tensors are unpickled.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

ABOUT = "shoal.json"
FIRST = ("model", "optimizer", "training")
"""Prefixes of the files that are compared first: a weight that differs says more than the state that follows from it."""
MAX_LISTED = 20
_FIELDS = ("step", "world_size", "global_batch", "seed", "parallel", "torch", "device", "deterministic")
_GENERATOR = re.compile(r"rng\[\d+\]\.(\w+)")


def compare(first: Path, second: Path, uncontrolled: Collection[str] = ()) -> dict[str, Any]:
    """Compare two checkpoint directories.

    Args:
        first: Directory of the first checkpoint.
        second: Directory of the second checkpoint.
        uncontrolled: Random generators (python, numpy, torch) that started with different states: theirs are not compared,
            and those that differ are named in `left_out`.

    Returns:
        {equal, left_out, files: {name: {equal, hashes}}, count, differences: [...]} and some fields of the first shoal.json.
    """
    torch = import_module("torch")
    about = [json.loads((path / ABOUT).read_bytes()) for path in (first, second)]
    listed = [_listed(torch, path, said) for path, said in zip((first, second), about, strict=True)]
    found: list[dict[str, Any]] = [
        {"file": name, "where": "", "what": "file", "first": name in listed[0], "second": name in listed[1]}
        for name in sorted(listed[0] ^ listed[1])
    ]
    for key in ("step", "world_size", "global_batch", "seed", "parallel", "epoch"):
        if about[0].get(key) != about[1].get(key):
            found.append({"file": ABOUT, "where": key, "what": "fact"} | _pair(about[0].get(key), about[1].get(key)))
    files: dict[str, Any] = {}
    for name in sorted(listed[0] & listed[1], key=_rank):
        values = [_read(torch, path / name) for path in (first, second)]
        hashes = [digest(value) for value in values]
        files[name] = {"equal": hashes[0] == hashes[1], "hashes": hashes}
        if hashes[0] != hashes[1]:
            found += [{"file": name, **difference} for difference in differences(*values)]
    left_out = {generator for f in found if (generator := _generator(f)) in uncontrolled}
    found = [f for f in found if _generator(f) not in left_out]
    return {
        "equal": not found,
        "left_out": sorted(g for g in left_out if g is not None),
        "files": files,
        "count": len(found),
        "differences": found[:MAX_LISTED],
        **{key: about[0].get(key) for key in _FIELDS},
    }


def differences(first: Any, second: Any, where: str = "") -> Iterator[dict[str, Any]]:
    """Yield every place where two nested values differ, in the order of the first."""
    if _is_tensor(first) and _is_tensor(second):
        yield from _tensors(first, second, where)
    elif isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(k for k in second if k not in first)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in first or key not in second:
                missing = "absent" if key not in first else _display_value(first[key])
                yield {"where": place, "what": "entry"} | _pair(missing, _display_value(second.get(key, "absent")))
            else:
                yield from differences(first[key], second[key], place)
    elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        if len(first) != len(second):
            yield {"where": where, "what": "length"} | _pair(len(first), len(second))
        for number, (one, other) in enumerate(zip(first, second, strict=False)):
            yield from differences(one, other, f"{where}[{number}]")
    elif _bytes(first) != _bytes(second):
        yield {"where": where, "what": "value"} | _pair(_display_value(first), _display_value(second))


def digest(value: Any) -> str:
    """Return a hash of all values in a nest, in order. Equal nests have equal hashes, however they were stored."""
    hashed = hashlib.blake2b(digest_size=16)
    for piece in _flat(value):
        hashed.update(piece)
    return hashed.hexdigest()


def _generator(difference: Mapping[str, Any]) -> str | None:
    """Return the random generator whose state differs here; None for other differences."""
    match = _GENERATOR.match(difference["where"]) if difference["file"] == "training.pt" else None
    return match[1] if match else None


def _rank(name: str) -> tuple[int, str]:
    return next((i for i, start in enumerate(FIRST) if name.startswith(start)), len(FIRST)), name


def _tensors(first: Any, second: Any, where: str) -> Iterator[dict[str, Any]]:
    for what in ("dtype", "shape"):
        one, other = getattr(first, what), getattr(second, what)
        if one != other:
            yield {"where": where, "what": what} | _pair(str(one), str(other))
            return
    if _tensor_bytes(first) == _tensor_bytes(second):
        return
    torch = import_module("torch")
    flat = [t.contiguous().flatten() for t in (first, second)]
    raw = [t.view(torch.uint8).reshape(t.numel(), -1) for t in flat]
    wrong = (raw[0] != raw[1]).any(dim=1).nonzero().flatten()
    at = int(wrong[0])
    found = {
        "where": where,
        "what": "tensor",
        "index": _index(at, first.shape),
        "count": len(wrong),
        "of": first.numel(),
    }
    found |= _pair(_display_value(flat[0][at].item()), _display_value(flat[1][at].item()))
    if first.is_floating_point():
        found["max_difference"] = _display_value(float((flat[0].double() - flat[1].double()).abs().max()))
    yield found


def _flat(value: Any) -> Iterator[bytes]:
    if _is_tensor(value):
        yield f"T{value.dtype}{tuple(value.shape)}".encode()
        yield _tensor_bytes(value)
    elif isinstance(value, dict):
        yield b"{%d" % len(value)
        for key, item in value.items():
            yield f"{key!r}:".encode()
            yield from _flat(item)
    elif isinstance(value, (list, tuple)):
        yield b"[%d" % len(value)
        for item in value:
            yield from _flat(item)
    else:
        yield _bytes(value)


def _bytes(value: Any) -> bytes:
    """Return an exact encoding; unlike `==`, two NaN are equal."""
    if isinstance(value, float):
        return b"f" + struct.pack("<d", value)
    return value if isinstance(value, bytes) else f"{type(value).__name__} {value!r}".encode()


def _tensor_bytes(tensor: Any) -> bytes:
    torch = import_module("torch")
    tensor = tensor.detach()
    tensor = (tensor.to_dense() if tensor.layout != torch.strided else tensor).cpu().contiguous()
    return bytes(tensor.flatten().view(torch.uint8).numpy().tobytes()) if tensor.numel() else b""


def _is_tensor(value: Any) -> bool:
    return isinstance(value, import_module("torch").Tensor)


def _index(at: int, shape: Any) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        at, rest = divmod(at, size)
        index.insert(0, rest)
    return index


def _pair(first: Any, second: Any) -> dict[str, Any]:
    return {"first": first, "second": second}


def _display_value(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    return f"tensor of {tuple(value.shape)}" if _is_tensor(value) else f"{type(value).__name__} of {len(value)}"


def _listed(torch: Any, path: Path, said: Mapping[str, Any]) -> set[str]:
    """Return the names of the files; of a sharded checkpoint those of a whole one, which has the same values."""
    names = set(said.get("files", {}))
    if "state.pt" not in names:
        return names
    lists = {"state.pt", "shards.json", ".metadata"}
    whole = set(torch.load(path / "state.pt", map_location="cpu", weights_only=True))
    return {name for name in names - lists if not name.endswith(".distcp")} | whole


def _read(torch: Any, path: Path) -> Any:
    """Return the values of a file, or its bytes if it holds more than plain values and tensors."""
    if not path.exists():
        return import_module("shoal.sdk.saving.restore").read_file(path.parent, path.name)
    if path.suffix == ".pt":
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            print(f"{path.name} is compared as bytes: {error}", file=sys.stderr)
    return path.read_bytes()


if __name__ == "__main__":
    json.dump(compare(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]), sys.stdout)
