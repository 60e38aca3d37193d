"""Check of feature files before a run starts: whether they exist, are complete, and have samples of the same kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.errors import UsageError
from shoal.train.data.files import Paths, Read, expand, read_samples
from shoal.train.data.record_files import RecordReader

_LISTED = 10
"""Problems that are listed; further ones are only counted."""


class FileFacts(NamedTuple):
    """A checked file."""

    path: Path
    size: int
    """Size in bytes."""
    samples: int


def check_files(
    *paths: Paths,
    read: Read | None = None,
    check: Callable[[Any], object] | None = None,
    limit: int | None = None,
) -> list[FileFacts]:
    """Check files and return their sizes and sample counts; raise UsageError with all problems.

    Args:
        *paths: Files, folders, patterns, or lists of them.
        read: Yields the samples of a file; by default according to its suffix, see read_samples. See also `records`.
        check: Called with each sample; raises an error or returns False for an invalid one.
        limit: Maximum samples to check in each file. The counts are then limited too.

    Example:
        >>> facts = check_files("feat/train/*.pkl", check=lambda sample: len(sample["text"]) > 0)
        >>> print(sum(file.samples for file in facts))
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
                    problems.append(f"{path}, sample {count} is invalid according to check")
                    break
                count += 1
            else:
                if not count:
                    problems.append(f"{path} has no samples")
        except Exception as error:  # any error of the user's read or check is a problem to report
            text = error.message if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
            problems.append(text if str(path) in text else f"{path}, sample {count}: {text}")
        facts.append(FileFacts(path, path.stat().st_size, count))
    if problems:
        more = len(problems) - _LISTED
        listed = [*problems[:_LISTED], *([f"and {more} more"] if more > 0 else [])]
        lines = "".join(f"\n  {problem}" for problem in listed)
        raise UsageError(f"the data has problems:{lines}", hint="create these files again, or leave them out")
    return facts


def records(decode: Callable[[bytes], Any] | None = None) -> Read:
    """Return a `read` function for files of records.

    Example:
        >>> check_files("train.rec", read=records(json.loads))
    """

    def read(path: Path) -> Iterator[Any]:
        reader = RecordReader(path)
        for number in range(len(reader)):
            yield reader[number] if decode is None else decode(reader[number])

    return read


def difference(sample: Any, usual: Any, at: str = "it") -> str | None:
    """Return how the structure of two samples differs; None if it does not. Sizes may differ, and None matches anything."""
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
    """Return the files that exist; add the others to `problems`."""
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
