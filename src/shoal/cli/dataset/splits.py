"""Search for samples that are in more than one of train, validation and test. Memory is bounded: large datasets are sampled."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from blake3 import blake3

MOST_KEPT = 500_000
"""Maximum number of samples kept in memory. With more, only those whose hash ends in enough zero bits are kept: the same
ones in every split, so that duplicates are still found and their number can be estimated."""
_WORDS = {
    "train": "train",
    "training": "train",
    "valid": "validation",
    "validation": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
}


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Number of samples that two splits share, with one of them as an example."""

    first_split: str
    split: str
    count: int
    is_estimate: bool
    first_path: str
    first_line: int
    path: str
    line: int


class Samples:
    def __init__(self, most: int = MOST_KEPT):
        self.count = 0
        self._most, self._shift = most, 0
        self._paths: list[str] = []
        self._known: dict[str, int] = {}
        self._seen: dict[int, tuple[str, int, int]] = {}
        self._double: dict[int, tuple[str, int, int]] = {}
        """`_seen`: hash → (split, path number, line) of the first occurrence; `_double`: of the first one in another split."""

    def add(self, split: str, path: str, line: int, record: bytes) -> None:
        self.count += 1
        key = int.from_bytes(blake3(record).digest(length=8), "big")
        if key & ((1 << self._shift) - 1):
            return
        here = (split, self._number(path), line)
        first = self._seen.setdefault(key, here)
        if first[0] != split:
            self._double.setdefault(key, here)
        if len(self._seen) > self._most:
            self._thin()

    def duplicates(self) -> list[Duplicates]:
        pairs: dict[tuple[str, str], list[int]] = defaultdict(list)
        for key, (split, _, _) in self._double.items():
            pairs[self._seen[key][0], split].append(key)
        return [self._pair(first, split, keys) for (first, split), keys in sorted(pairs.items())]

    def _pair(self, first: str, split: str, keys: list[int]) -> Duplicates:
        (_, first_path, first_line), (_, path, line) = self._seen[keys[0]], self._double[keys[0]]
        paths = self._paths
        return Duplicates(
            first, split, len(keys) << self._shift, self._shift > 0, paths[first_path], first_line, paths[path], line
        )

    def _thin(self) -> None:
        self._shift += 1
        mask = (1 << self._shift) - 1
        self._seen = {k: v for k, v in self._seen.items() if not k & mask}
        self._double = {k: v for k, v in self._double.items() if not k & mask}

    def _number(self, path: str) -> int:
        if path not in self._known:
            self._known[path] = len(self._paths)
            self._paths.append(path)
        return self._known[path]


def split_of(path: str) -> str | None:
    """Return the split named by the first matching word of a path (`train/1.jpg`, `data/test-00000.parquet`), or None."""
    for word in re.split(r"[^a-z]+", path.lower()):
        if word in _WORDS:
            return _WORDS[word]
    return None
