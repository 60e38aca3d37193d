"""A script and the modules of the source it imports: what would run as one job."""

from __future__ import annotations

import ast
import posixpath
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from shoal.check.module import Module
from shoal.check.source import Source

MAX_BYTES = 16 << 20
"""Of code that is followed; more than that is not one script's."""
_LOADS_MORE = ("importlib", "__import__", "exec(", "runpy")


@dataclass(frozen=True, slots=True)
class Broken:
    """A file that Python cannot read."""

    path: str
    line: int
    column: int
    message: str


@dataclass(eq=False)
class Program:
    source: Source
    entry: str
    modules: list[Module] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    missing: list[tuple[Module, ast.stmt, str]] = field(default_factory=list)
    """Imports of files that are on the disk but not in the source."""
    unread: bool = False
    """There is code of the source that was not looked at."""

    @cached_property
    def is_whole(self) -> bool:
        """All that runs is here, as far as can be told: only then does it mean anything that something is missing."""
        return not self.unread and not self.broken and not self.mentions(*_LOADS_MORE)

    def calls(self, package: str, *names: str) -> Iterator[tuple[Module, ast.Call]]:
        """Calls that surely are of these names of a package."""
        for module in self.modules:
            for call in module.calls(package, *names):
                yield module, call

    def has_call(self, package: str, *names: str) -> bool:
        return next(self.calls(package, *names), None) is not None

    def methods(self, *names: str) -> Iterator[tuple[Module, ast.Call, ast.Attribute]]:
        """Calls of `something.name(…)`, whatever it is."""
        for module in self.modules:
            for call in module.all(ast.Call):
                if isinstance(call.func, ast.Attribute) and call.func.attr in names:
                    yield module, call, call.func

    def mentions(self, *words: str) -> bool:
        """Whether the text of any file has one of these words at all."""
        return any(word in module.text for module in self.modules for word in words)

    @cached_property
    def imported(self) -> frozenset[str]:
        """Top-level names of the packages imported, as written."""
        found = set()
        for module in self.modules:
            for plain in module.all(ast.Import):
                found |= {alias.name for alias in plain.names}
            for node in module.all(ast.ImportFrom):
                if node.module and not node.level:
                    found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        return frozenset(found)

    def imports(self, *packages: str) -> bool:
        return any(name == p or name.startswith(p + ".") for name in self.imported for p in packages)


def read_program(source: Source, entry: str, max_bytes: int = MAX_BYTES) -> Program:
    """Follow the imports from the entry on, through the files of the source."""
    program = Program(source, entry)
    ahead, seen, left = [entry], {entry}, max_bytes
    while ahead:
        path = ahead.pop(0)
        text = source.read(path)
        left -= len(text or "")
        if text is None or left < 0:
            program.unread = True
            continue
        try:
            module = Module(path, text)
        except SyntaxError as error:
            program.broken.append(Broken(path, error.lineno or 1, error.offset or 1, error.msg))
            continue
        except (ValueError, RecursionError, MemoryError):
            program.unread = True
            continue
        program.modules.append(module)
        for statement, wanted in _imports(module):
            for found in _files_of(source, entry, path, wanted):
                if found in source.paths:
                    ahead += [found] if found not in seen else []
                    seen.add(found)
                elif not module.is_tried(statement):
                    program.missing.append((module, statement, found))
    return program


def _imports(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    for plain in module.all(ast.Import):
        for alias in plain.names:
            yield plain, alias.name
    for node in module.all(ast.ImportFrom):
        for alias in node.names:
            yield node, f"{'.' * node.level}{node.module or ''}.{alias.name}"


def _files_of(source: Source, entry: str, path: str, wanted: str) -> list[str]:
    """The files of the source, or at least of the disk, that an import loads: packages on the way included."""
    level = len(wanted) - len(wanted.lstrip("."))
    parts = [part for part in wanted.split(".") if part]
    if level:
        base = posixpath.dirname(path)
        for _ in range(level - 1):
            base = posixpath.dirname(base)
        bases = [base]
    else:
        bases = list(dict.fromkeys([posixpath.dirname(entry), ""]))  # python puts the script's folder on its path
    for base in bases:
        found = _chain(source, base, parts)
        if found:
            return found
    return []


def _chain(source: Source, base: str, parts: list[str]) -> list[str]:
    found: list[str] = []
    for part in parts:
        base = posixpath.join(base, part)
        package, module = f"{base}/__init__.py", f"{base}.py"
        if package in source.paths or module in source.paths:
            found.append(package if package in source.paths else module)
        elif not found and part not in sys.stdlib_module_names and (left := _left_out(source, package, module)):
            return [left]
        elif base not in source.folders:
            break
    return found


def _left_out(source: Source, *paths: str) -> str | None:
    return next((path for path in paths if source.leaves_out(path)), None)
