"""Finds out whether a job's script accepts `--data`, by its own code and that of the modules of the source that it imports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast

_MAX_FILES = 300
_MAX_BYTES = 8 << 20
_HINT = re.compile(r"""["']--data["']|HfArgumentParser""")


def wants_data(entry: list[str], source: Path, script: str | None) -> bool:
    """Return whether to add `--data`: the script accepts it, and the user did not pass it."""
    return script is not None and not passes_data(entry) and accepts_data(source, script)


def passes_data(argv: list[str]) -> bool:
    """Return whether the user passed `--data`, or an abbreviation that argparse accepts for it."""
    return any(a == "--data" or a.startswith("--data=") or a in ("--dat", "--da") for a in argv)


def accepts_data(source: Path, script: str) -> bool:
    """Return whether a script accepts `--data`: by argparse, or as a field `data` of a class given to HfArgumentParser.

    In imported modules only code that can run for this script counts: a module may be a script with a parser of its own.
    """
    files = _imported_files(source, source / script)
    if not any(_HINT.search(text) for _, text, _ in files):
        return False
    trees = [tree for *_, tree in files]
    parsed = _classes_parsed(trees)
    for number, (_, text, tree) in enumerate(files):
        is_entry = number == 0
        # In the script itself any such class counts: it may be given to the parser under another name.
        lenient = is_entry and "HfArgumentParser" in text
        if any(_has_data_field(c) for c in _classes(tree) if lenient or c.name in parsed):
            return True
        if _adds_data(tree, None if is_entry else _used_names(trees, tree)):
            return True
    return False


def _imported_files(source: Path, script: Path) -> list[tuple[Path, str, ast.Module]]:
    """Return path, text and code of the script and, recursively, of the files below `source` that it imports."""
    import ast

    found: list[tuple[Path, str, ast.Module]] = []
    ahead, seen, left = [script], {script}, _MAX_BYTES
    while ahead and len(found) < _MAX_FILES:
        path = ahead.pop(0)
        try:
            text = path.read_text("utf-8", "replace")
            tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        left -= len(text)
        if left < 0:
            break
        found.append((path, text, tree))
        for file in _files_of(tree, path, [script.parent, source]):
            if file not in seen:
                seen.add(file)
                ahead.append(file)
    return found


def _files_of(tree: ast.Module, path: Path, roots: list[Path]) -> Iterator[Path]:
    """Yield the files that the imports of a module load, including the packages on the way."""
    import ast

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [(roots, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            bases = [path.parents[min(node.level, len(path.parents)) - 1]] if node.level else roots
            wanted = [(bases, f"{node.module or ''}.{alias.name}".strip(".")) for alias in node.names]
        else:
            continue
        for bases, name in wanted:
            yield from next(filter(None, (_chain(base, name.split(".")) for base in bases)), [])


def _chain(base: Path, parts: list[str]) -> list[Path]:
    found: list[Path] = []
    for part in parts:
        base = base / part
        package, module = base / "__init__.py", base.with_name(f"{part}.py")
        if package.is_file() or module.is_file():
            found.append(package if package.is_file() else module)
        elif not base.is_dir():
            break
    return found


def _classes_parsed(trees: list[ast.Module]) -> set[str]:
    """Return the names of the classes given to HfArgumentParser, and of their bases."""
    import ast

    names: set[str] = set()
    for tree in trees:
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and _name(call.func) == "HfArgumentParser":
                for given in [*call.args, *(k.value for k in call.keywords)]:
                    names |= {_name(node) for node in ast.walk(given)}
    classes = [c for tree in trees for c in _classes(tree)]
    while bases := {_name(b) for c in classes if c.name in names for b in c.bases} - names:
        names |= bases
    return names


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    import ast

    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _has_data_field(node: ast.ClassDef) -> bool:
    import ast

    fields = [s.target for s in node.body if isinstance(s, ast.AnnAssign)]
    return any(isinstance(target, ast.Name) and target.id == "data" for target in fields)


def _adds_data(tree: ast.Module, used: set[str] | None) -> bool:
    """Return whether a module adds the argument; with `used`, only outside `if __name__ …` and unused definitions."""
    for node in tree.body:
        if used is not None and (_is_main_guard(node) or _defined(node) not in {None, *used}):
            continue
        if _adds(node):
            return True
    return False


def _adds(node: ast.AST) -> bool:
    import ast

    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "add_argument"
        and any(isinstance(a, ast.Constant) and a.value == "--data" for a in call.args)
        for call in ast.walk(node)
    )


def _used_names(trees: list[ast.Module], own: ast.Module) -> set[str]:
    """Return the names that other modules import or read as an attribute, and those that the module's own code reads."""
    import ast

    names: set[str] = set()
    for tree in trees:
        for node in tree.body:
            if tree is own and _is_main_guard(node):
                continue
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom):
                    names |= {alias.name for alias in inner.names}
                elif isinstance(inner, ast.Attribute) or (tree is own and isinstance(inner, ast.Name)):
                    names.add(_name(inner))
    return names


def _is_main_guard(node: ast.stmt) -> bool:
    import ast

    return isinstance(node, ast.If) and any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test))


def _defined(node: ast.stmt) -> str | None:
    import ast

    return node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else None


def _name(node: ast.AST) -> str:
    """Return the last part of a name or an attribute, or an empty string."""
    import ast

    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
