"""Expansion of paths to files, and reading of samples according to the suffix."""

from __future__ import annotations

import glob
import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core.errors import UsageError

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Read = Callable[[Path], Iterable[Any]]
INDEX_SUFFIX = ".index"
"""Suffix of the index next to a file of records."""


def expand(paths: Paths) -> list[Path]:
    """Return the files of paths, folders (all files in them) and patterns, without hidden files.

    The files of one folder or pattern are sorted. Raises UsageError if there are none.

    Example:
        >>> files = expand(["feat/train/*.pkl", "feat/extra.pkl"])
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = [file for path in given for file in _expand_one(os.fspath(path))]
    if not found:
        raise UsageError(
            "no data files were given", hint='give a file, a folder or a pattern such as "feat/train/*.pkl"'
        )
    return found


def are_paths(source: object) -> bool:
    """Check whether a source is files, not the samples themselves."""
    if isinstance(source, str | os.PathLike):
        return True
    return isinstance(source, list | tuple) and bool(source) and all(isinstance(s, str | os.PathLike) for s in source)


def read_samples(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Yield the samples of a file, according to its suffix.

    .jsonl .ndjson   the JSON value of each line
    .json            the items of a list
    .txt             each line
    .pt .pth         the items of a list saved by torch.save
    .pkl .pickle     pickled samples one after the other, or one pickled list; open only files you trust

    Example:
        >>> samples = list(read_samples("feat/train.jsonl"))
    """
    path = Path(path)
    kind = _READERS.get(path.suffix.lower())
    if kind is None:
        raise UsageError(
            f"{path} has an unknown suffix; known are {', '.join(_READERS)}",
            hint="pass read=…, a function that takes the path and yields samples",
        )
    try:
        yield from kind(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except UsageError:
        raise
    except (ValueError, EOFError, pickle.UnpicklingError, AttributeError, ImportError, IndexError) as error:
        raise UsageError(
            f"{path} is not a valid {path.suffix} file: {type(error).__name__}: {error}", hint="create the file again"
        ) from error


def _expand_one(path: str) -> list[Path]:
    if Path(path).is_dir():
        files = sorted(f for f in Path(path).rglob("*") if f.is_file() and not _is_aside(f.relative_to(path)))
        if not files:
            raise UsageError(f"the folder {path} has no files")
        return files
    if Path(path).exists():
        return [Path(path)]
    found = map(Path, glob.glob(path, recursive=True))  # noqa: PTH207  the pattern may be absolute
    matches = sorted(f for f in found if f.is_file() and not _is_aside(f))
    if not matches:
        raise UsageError(f"there is no file {path}", hint=f"relative paths start at {Path.cwd()}")
    return matches


def _is_aside(path: Path) -> bool:
    return path.suffix == INDEX_SUFFIX or any(part.startswith(".") for part in path.parts if part not in (".", ".."))


def _json_lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}, line {number} is not JSON: {error}", hint="create the file again") from error


def _json(path: Path) -> Iterator[Any]:
    return iter(_items(path, json.loads(path.read_text(encoding="utf-8"))))


def _text(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield line.rstrip("\n")


def _torch(path: Path) -> Iterator[Any]:
    torch: Any = import_module("torch")
    return iter(_items(path, torch.load(path, map_location="cpu", weights_only=True)))


def _pickles(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        first = pickle.load(file)  # noqa: S301  the user's own features
        if not file.peek(1):
            yield from _items(path, first) if isinstance(first, list) else [first]
            return
        yield first
        while file.peek(1):
            yield pickle.load(file)  # noqa: S301


def _items(path: Path, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{path} contains a {type(value).__name__} instead of a list of samples")
    return list(value)


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".txt": _text,
    ".pt": _torch,
    ".pth": _torch,
    ".pkl": _pickles,
    ".pickle": _pickles,
}
