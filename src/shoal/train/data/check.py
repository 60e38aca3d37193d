"""Looks through feature files before a run starts: are they there, whole, and all of one kind?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.errors import UsageError
from shoal.train.data.files import Paths, Read, expand, read_samples
from shoal.train.data.record_files import RecordReader

_TOLD = 10
"""Problems that are told; more of them are counted."""


class FileFacts(NamedTuple):
    path: Path
    size: int
    """In bytes."""
    samples: int


def check_files(
    *paths: Paths,
    read: Read | None = None,
    check: Callable[[Any], object] | None = None,
    limit: int | None = None,
) -> list[FileFacts]:
    """What is in the files; a UsageError that lists all problems if there are any.

    read   gives the samples of a file; by its name's ending unless given, see read_samples. See also `records`
    check  is given each sample, and raises or returns False if it is not as it should be
    limit  samples looked at in each file; all unless given, and then the counts are right too
    """
    problems: list[str] = []
    facts: list[FileFacts] = []
    usual: tuple[Any, Path] | None = None
    for path in _files(paths, problems):
        count = 0
        try:
            for sample in _limited((read or read_samples)(path), limit):
                usual = usual or (sample, path)
                if (found := difference(sample, usual[0])) is not None:
                    problems.append(f"{path}, sample {count}: {found} as in {usual[1]}")
                    break
                if check is not None and check(sample) is False:
                    problems.append(f"{path}, sample {count} is not as it should be")
                    break
                count += 1
            else:
                if not count:
                    problems.append(f"{path} holds no samples")
        except Exception as error:  # whatever a user's read or check raises is what is to be told
            said = error.message if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
            problems.append(said if str(path) in said else f"{path}, sample {count}: {said}")
        facts.append(FileFacts(path, path.stat().st_size, count))
    if problems:
        more = len(problems) - _TOLD
        told = [*problems[:_TOLD], *([f"and {more} more"] if more > 0 else [])]
        lines = "".join(f"\n  {problem}" for problem in told)
        raise UsageError(
            f"the data cannot be trained on as it is:{lines}", hint="make these files again, or leave them out"
        )
    return facts


def records(decode: Callable[[bytes], Any] | None = None) -> Read:
    """To pass as `read` for files of records."""

    def read(path: Path) -> Iterator[Any]:
        reader = RecordReader(path)
        for number in range(len(reader)):
            yield reader[number] if decode is None else decode(reader[number])

    return read


def difference(sample: Any, usual: Any, at: str = "it") -> str | None:
    """Where a sample is made of other things than another, in words. Sizes may differ, and None may stand for anything."""
    if sample is None or usual is None:
        return None
    if isinstance(sample, dict) and isinstance(usual, dict):
        if sample.keys() != usual.keys():
            return f"{at} has the keys {_listed(sample)}, not {_listed(usual)}"
        parts = [(f"{at}[{key!r}]", sample[key], usual[key]) for key in sample]
    elif isinstance(sample, tuple) and isinstance(usual, tuple):
        if len(sample) != len(usual):
            return f"{at} has {len(sample)} parts, not {len(usual)}"
        parts = [(f"{at}[{i}]", one, other) for i, (one, other) in enumerate(zip(sample, usual, strict=True))]
    else:
        kind, expected = _kind(sample), _kind(usual)
        return None if kind == expected else f"{at} is {kind}, not {expected}"
    return next((found for where, one, other in parts if (found := difference(one, other, where)) is not None), None)


def _kind(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "ndim"):
        return f"{str(value.dtype).removeprefix('torch.')} with {value.ndim} dimensions"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number"
    return {"str": "text", "dict": "a dict", "tuple": "a tuple", "list": "a list"}.get(
        name := type(value).__name__, name
    )


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(sorted(map(str, names)))


def _files(paths: Iterable[Paths], problems: list[str]) -> list[Path]:
    """All that are there; those that are not are problems."""
    found: list[Path] = []
    for given in paths:
        for path in [given] if isinstance(given, str | os.PathLike) else given:
            try:
                found += expand(path)
            except UsageError as error:
                problems.append(error.message)
    if not found and not problems:
        problems.append("no data files were given")
    return found


def _limited(samples: Iterable[Any], limit: int | None) -> Iterator[Any]:
    for number, sample in enumerate(samples):
        if limit is not None and number >= limit:
            return
        yield sample
