"""Program of a job: a script and the modules of the source that it imports."""

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
"""Maximum total size of the code that is read for one script."""
_LOADS_MORE = ("importlib", "__import__", "exec(", "runpy")


@dataclass(frozen=True, slots=True)
class Broken:
    """File with a syntax error."""

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
    """Imports of files that exist on the disk but are not in the source."""
    unread: bool = False
    """True if some code of the source was not read."""

    @cached_property
    def is_whole(self) -> bool:
        """True if all code that runs is known; only then can a rule conclude that something is missing."""
        return not self.unread and not self.broken and not self.mentions(*_LOADS_MORE)

    def calls(self, package: str, *names: str) -> Iterator[tuple[Module, ast.Call]]:
        """Yield the calls that certainly call one of these names of a package."""
        for module in self.modules:
            for call in module.calls(package, *names):
                yield module, call

    def has_call(self, package: str, *names: str) -> bool:
        return next(self.calls(package, *names), None) is not None

    def methods(self, *names: str) -> Iterator[tuple[Module, ast.Call, ast.Attribute]]:
        """Yield the calls of `something.name(…)` for any object."""
        for module in self.modules:
            for call in module.all(ast.Call):
                if isinstance(call.func, ast.Attribute) and call.func.attr in names:
                    yield module, call, call.func

    def mentions(self, *words: str) -> bool:
        """Check whether the text of any file contains one of these words."""
        return any(word in module.text for module in self.modules for word in words)

    @cached_property
    def imported(self) -> frozenset[str]:
        """Full names of the imported packages and names, as written."""
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
    """Read the entry and, recursively, the files of the source that it imports."""
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
    """Return the files that an import loads, including the packages on the way: from the source, or at least the disk."""
    level = len(wanted) - len(wanted.lstrip("."))
    parts = [part for part in wanted.split(".") if part]
    if level:
        base = posixpath.dirname(path)
        for _ in range(level - 1):
            base = posixpath.dirname(base)
        bases = [base]
    else:
        bases = list(dict.fromkeys([posixpath.dirname(entry), ""]))  # Python adds the script's folder to sys.path
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
        elif not found and part not in sys.stdlib_module_names and (left := _excluded(source, package, module)):
            return [left]
        elif base not in source.folders:
            break
    return found


def _excluded(source: Source, *paths: str) -> str | None:
    return next((path for path in paths if source.excludes(path)), None)
