"""Import of many remote files: listed once, then fetched in parallel; a file appears only when it is complete."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shoal.core.artifacts import check_path
from shoal.core.errors import InvalidSpec, SourceTooLarge
from shoal.store.ignore import human_size
from shoal.store.pack import Progress

MAX_FILES = 100_000
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """File to be fetched."""

    path: str
    """Path in the dataset."""
    key: str
    """Name at its source."""
    size: int
    version: str
    """Digest or ETag, which changes with the content."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Files to fetch, as listed at one moment. Stored on disk, so that an interrupted import continues with the same list."""

    files: list[RemoteFile]
    origin: dict[str, str] = field(default_factory=dict)
    """Facts for the dataset's record, e.g. the revision."""

    @property
    def size(self) -> int:
        return sum(f.size for f in self.files)

    def save(self, path: Path) -> None:
        aside = path.with_name(path.name + ".tmp")
        aside.write_text(json.dumps(asdict(self)))
        aside.replace(path)

    @classmethod
    def load(cls, path: Path) -> Plan | None:
        try:
            read = json.loads(path.read_text())
            return cls([RemoteFile(**f) for f in read["files"]], read["origin"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


Fetch = Callable[[RemoteFile, Path, Progress], None]
"""Function that fetches one file to a path, continuing what is there, and reports bytes as they arrive."""


def make_plan(listed: Iterable[RemoteFile], what: str, *, max_bytes: int, origin: dict[str, str]) -> Plan:
    """Return a plan; raise if it is too large or its paths do not form a tree."""
    files: dict[str, RemoteFile] = {}
    size = 0
    for file in listed:
        try:
            check_path(file.path)
        except InvalidSpec:
            raise InvalidSpec(f"{what} contains {file.key!r}, which cannot be the path of a file.") from None
        size += file.size
        if size > max_bytes:
            raise SourceTooLarge(f"{what} is larger than the {human_size(max_bytes)} that may be fetched.")
        if len(files) >= MAX_FILES:
            raise SourceTooLarge(f"{what} contains more than {MAX_FILES:,} files; combine them into larger ones.")
        files[file.path] = file
    return Plan(_as_tree(files, what), origin)


def fetch_all(plan: Plan, tree: Path, parts: Path, fetch: Fetch, progress: Progress) -> None:
    """Fetch the files that `tree` does not have. Partial files are in `parts`; a complete one is moved to the tree."""
    failed = threading.Event()
    tree.mkdir(parents=True, exist_ok=True)
    root = tree.resolve()

    def report(count: int) -> None:
        if failed.is_set():
            raise InterruptedError
        progress(count)

    def one(index: int, file: RemoteFile) -> None:
        target = root / file.path
        if target.is_file() and target.stat().st_size == file.size:
            report(file.size)
            return
        part = parts / str(index)
        report(0)
        fetch(file, part, report)
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)
        part.with_name(part.name + ".json").unlink(missing_ok=True)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="import-file") as pool:
        running = [pool.submit(one, index, file) for index, file in enumerate(plan.files)]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        failed.set()
        for future in running:
            future.cancel()
    for future in done:
        future.result()


def _as_tree(files: dict[str, RemoteFile], what: str) -> list[RemoteFile]:
    """Return the files sorted by path, without the empty objects that represent folders in some buckets."""
    folders = {path[:at] for path in files for at, char in enumerate(path) if char == "/"}
    for path in folders & files.keys():
        if files[path].size:
            raise InvalidSpec(f"{what} contains both {path!r} and files below it, which is not possible in a folder.")
        del files[path]
    return [files[path] for path in sorted(files)]
