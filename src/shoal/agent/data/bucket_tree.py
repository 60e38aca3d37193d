"""Folders and files that a bucket's keys stand for."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.agent.data.bucket_reader import Object

ROOT = 1
_LONGEST = 255


class Tree:
    """Numbered entries, as a filesystem needs them: entry 1 is the root."""

    def __init__(self, objects: Iterable[Object]):
        self.files: dict[int, Object] = {}
        """Number → file."""
        self.folders: dict[int, dict[str, int]] = {ROOT: {}}
        """Number → names and numbers of what is in the folder."""
        self.parents: dict[int, int] = {ROOT: ROOT}
        self.left_out = 0
        """Keys that are no possible paths, such as `a//b`, or that are both a file and a folder."""
        self._next = ROOT
        for found in sorted(objects, key=lambda one: one.path.count("/"), reverse=True):  # folders before files
            self._add(found)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def _add(self, found: Object) -> None:
        *above, name = found.path.split("/")
        parts = [*above, name] if name else above  # programs mark an empty folder with a key that ends in a slash
        if not all(_is_name(part) for part in parts):
            self.left_out += 1
            return
        folder = ROOT
        for part in above:
            number = self.folders[folder].get(part)
            folder = self._new(folder, part, None) if number is None else number
        if name and name in self.folders[folder]:
            self.left_out += 1
        elif name:
            self._new(folder, name, found)

    def _new(self, parent: int, name: str, file: Object | None) -> int:
        self._next += 1
        self.folders[parent][name] = self._next
        self.parents[self._next] = parent
        if file is None:
            self.folders[self._next] = {}
        else:
            self.files[self._next] = file
        return self._next


def _is_name(part: str) -> bool:
    return part not in ("", ".", "..") and "\0" not in part and len(part.encode()) <= _LONGEST
