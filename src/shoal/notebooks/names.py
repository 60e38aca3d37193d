"""Names that a cell's code defines, reads and imports."""

from __future__ import annotations

import ast
import builtins
import re

from shoal.notebooks.lines import ASSIGNED, NOT_PYTHON, pieces

_ALWAYS = frozenset(dir(builtins)) | {"__file__", "__name__", "__doc__", "__builtins__", "display", "get_ipython"}
_MEMORY = re.compile(r"_{1,3}|_i{1,3}|_ih|_oh|_dh|In|Out|_i?\d+")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def parse(source: str) -> ast.Module:
    """Parse a cell as IPython does, with top-level `await`. Raises one of NOT_PYTHON."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree: ast.Module = compile(source, "<cell>", "exec", flags=flags, dont_inherit=True)
    return tree


def bound_in_source(source: str) -> set[str]:
    """Return the names that a cell defines; the cell may contain IPython lines."""
    python, found = list[str](), set[str]()
    for piece in pieces(source):
        if piece.is_python:
            python += piece.lines
        else:
            python.append(f"{piece.indent}pass")
            if assigned := ASSIGNED.match(piece.command):
                found |= set(re.findall(r"[A-Za-z_]\w*", assigned[1]))
    try:
        return found | bound(ast.parse("\n".join(python)))
    except NOT_PYTHON:
        return found | set(re.findall(r"^\s*([A-Za-z_]\w*)\s*=[^=]", source, re.M))


def bound(tree: ast.AST) -> set[str]:
    """Return the names that are assigned in the cell's own scope."""
    found: set[str] = set()
    for node in _own(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name)
    return found


def read(tree: ast.AST) -> set[str]:
    """Return the names that a cell reads when it runs and does not define itself; names inside functions are read later."""
    loads = {n.id for n in _own(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return loads - bound(tree) - _ALWAYS


def read_anywhere(lines: list[str]) -> set[str]:
    """Return the names that these lines read, including those inside functions."""
    nodes = ast.walk(parse("\n".join(lines)))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def memory_of_results(tree: ast.AST, known: set[str]) -> set[str]:
    """Return the names that only IPython defines: `Out`, `_`, `_5` …"""
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return {name for name in names - stored - known if _MEMORY.fullmatch(name)}


def imports(tree: ast.AST) -> set[str]:
    """Return the imported top-level packages, without those imported in a `try`, which may be missing."""
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for body in node.body
        for inner in ast.walk(body)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _own(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes outside of functions, without the variables of comprehensions (but with `:=` in them)."""
    todo: list[ast.AST] = [tree]
    found: list[ast.AST] = []
    while todo:
        node = todo.pop()
        found.append(node)
        if isinstance(node, _SCOPES):
            todo += [
                *node.args.defaults,
                *(d for d in node.args.kw_defaults if d),
                *getattr(node, "decorator_list", []),
            ]
        elif isinstance(node, _LOOPS):
            own = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
            inner = [n for child in ast.iter_child_nodes(node) for n in _own(child)]
            found += [n for n in inner if not (isinstance(n, ast.Name) and n.id in own)]
        else:
            todo += ast.iter_child_nodes(node)
    return found
