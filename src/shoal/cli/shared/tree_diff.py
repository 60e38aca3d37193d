"""Comparison of two trees: files by their chunks, and safetensors files by their tensors."""

from __future__ import annotations

import bisect
import itertools
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any

from shoal.cli.shared.format import plural, size
from shoal.cli.shared.output import out
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.core.artifacts import FileEntry, Manifest

MOST_HEADER = 100 << 20
MOST_SHOWN = 20


@dataclass(slots=True)
class TensorDiff:
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    reshaped: list[str] = field(default_factory=list)
    unchanged: int = 0


@dataclass(slots=True)
class FileDiff:
    path: str
    old_size: int | None
    new_size: int | None
    tensors: TensorDiff | None = None


@dataclass(slots=True)
class TreeDiff:
    added: list[FileDiff] = field(default_factory=list)
    removed: list[FileDiff] = field(default_factory=list)
    changed: list[FileDiff] = field(default_factory=list)
    unchanged: int = 0
    """Number of files that are the same in both trees."""
    shared_bytes: int = 0
    """Bytes of the newer tree that the older one also has, in any file."""

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return asdict(self)


def compare(old: Manifest, new: Manifest) -> TreeDiff:
    before, after = ({f.path: f for f in m.files} for m in (old, new))
    known = {c.hash for f in old.files for c in f.chunks}
    found = TreeDiff(shared_bytes=sum(c.size for f in new.files for c in f.chunks if c.hash in known))
    for path in sorted(before.keys() | after.keys()):
        a, b = before.get(path), after.get(path)
        if a is not None and b is not None and content(a) == content(b):
            found.unchanged += 1
            continue
        place = found.added if a is None else found.removed if b is None else found.changed
        place.append(FileDiff(path, a.size if a else None, b.size if b else None))
    return found


def compare_tensors(found: TreeDiff, old: Manifest, new: Manifest, open_file: Callable[[FileEntry], IO[bytes]]) -> None:
    """Add the changed tensors to each changed safetensors file.

    Reads only the headers, and the tensors for which chunk hashes do not show whether they are equal.
    """
    before, after = ({f.path: f for f in m.files} for m in (old, new))
    for file in found.changed:
        if file.path.endswith(".safetensors"):
            file.tensors = _tensor_diff(before[file.path], after[file.path], open_file)


def content(file: FileEntry) -> tuple[bool, tuple[str, ...]]:
    return file.executable, tuple(c.hash for c in file.chunks)


def print_diff(found: TreeDiff) -> None:
    for mark, style, files in (
        ("+", "green", found.added),
        ("-", "red", found.removed),
        ("~", "yellow", found.changed),
    ):
        for file in files:
            sizes = " → ".join(size(s) for s in (file.old_size, file.new_size) if s is not None)
            out.styled((f"{mark} {file.path}", style), f"  {sizes}")
            if file.tensors is not None:
                _print_tensors(file.tensors)
    if not (found.added or found.removed or found.changed):
        out.info("No differences.")
        return
    counts = [
        f"{len(files)} {word}"
        for word, files in (("added", found.added), ("removed", found.removed), ("changed", found.changed))
        if files
    ]
    out.info(f"{', '.join(counts)}, {plural(found.unchanged, 'file')} unchanged; {size(found.shared_bytes)} in common.")


def _print_tensors(tensors: TensorDiff) -> None:
    for mark, names in (
        ("+", tensors.added),
        ("-", tensors.removed),
        ("~", tensors.changed),
        ("!", [f"{name} (other type or shape)" for name in tensors.reshaped]),
    ):
        for name in names[:MOST_SHOWN]:
            out.line(f"    {mark} {name}")
        if len(names) > MOST_SHOWN:
            out.line(f"    {mark} … {len(names) - MOST_SHOWN} more (see --json)")
    out.line(f"    {plural(tensors.unchanged, 'tensor')} unchanged")


@dataclass(frozen=True, slots=True)
class _Tensor:
    kind: tuple[str, tuple[int, ...]]
    start: int
    """Offset in the file."""
    end: int


DAMAGED = (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, struct.error)
"""Errors of a header that is damaged or none at all."""


def _tensor_diff(old: FileEntry, new: FileEntry, open_file: Callable[[FileEntry], IO[bytes]]) -> TensorDiff | None:
    try:
        with open_file(old) as a, open_file(new) as b:
            before, after = _header(a, old.size), _header(b, new.size)
            cut_a, cut_b = _Cuts(old), _Cuts(new)
            found = TensorDiff(added=sorted(after.keys() - before.keys()), removed=sorted(before.keys() - after.keys()))
            for name in sorted(before.keys() & after.keys()):
                if before[name].kind != after[name].kind:
                    found.reshaped.append(name)
                elif _same(cut_a, cut_b, before[name], after[name], a, b):
                    found.unchanged += 1
                else:
                    found.changed.append(name)
    except (ShoalError, *DAMAGED):
        return None  # damaged, or not a safetensors file: the diff then only says that the files differ
    return found


def _header(file: IO[bytes], file_size: int) -> dict[str, _Tensor]:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(file_size - 8, MOST_HEADER):
        raise ValueError("no header")
    found = {}
    for name, tensor in json.loads(file.read(length)).items():
        if name != "__metadata__":
            start, end = tensor["data_offsets"]
            kind = (str(tensor["dtype"]), tuple(int(n) for n in tensor["shape"]))
            found[str(name)] = _Tensor(kind, 8 + length + int(start), 8 + length + int(end))
    return found


def _same(old: _Cuts, new: _Cuts, a: _Tensor, b: _Tensor, in_a: IO[bytes], in_b: IO[bytes]) -> bool:
    """Check whether two tensors are equal: by chunk hashes if both are split in the same way, otherwise by their bytes."""
    if a.end - a.start != b.end - b.start:
        return False
    left, right = list(old.pieces(a)), list(new.pieces(b))
    if left == right:
        return True
    if [p[1:] for p in left] == [p[1:] for p in right] and all(is_whole for *_, is_whole in left):
        return False  # split in the same way, at the tensor's own bounds: different hashes mean different bytes
    return _same_bytes(in_a, a, in_b, b)


class _Cuts:
    """Offsets of a file's chunks."""

    def __init__(self, file: FileEntry):
        self._chunks = file.chunks
        self._starts = list(itertools.accumulate((c.size for c in file.chunks), initial=0))

    def pieces(self, tensor: _Tensor) -> Iterator[tuple[str, int, int, bool]]:
        """Yield (hash, first byte in the chunk, number of bytes, is the whole chunk) for each chunk of a tensor."""
        index = bisect.bisect_right(self._starts, tensor.start) - 1
        while index < len(self._chunks) and self._starts[index] < tensor.end:
            chunk, offset = self._chunks[index], self._starts[index]
            start, end = max(offset, tensor.start), min(offset + chunk.size, tensor.end)
            yield chunk.hash, start - offset, end - start, end - start == chunk.size
            index += 1


def _same_bytes(in_a: IO[bytes], a: _Tensor, in_b: IO[bytes], b: _Tensor) -> bool:
    in_a.seek(a.start)
    in_b.seek(b.start)
    left = a.end - a.start
    while left:
        block = min(left, 1 << 20)
        one, other = in_a.read(block), in_b.read(block)
        if one != other or not one:
            return False
        left -= len(one)
    return True
