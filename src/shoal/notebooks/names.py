"""Which names a cell's code gives values to, which it reads as it runs, and what it imports."""

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
    """As IPython would, `await` at the top allowed. Raises one of NOT_PYTHON."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree: ast.Module = compile(source, "<cell>", "exec", flags=flags, dont_inherit=True)
    return tree


def bound_in_source(source: str) -> set[str]:
    """Of a cell as it stands, with lines only IPython understands."""
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
    """Names that get a value in the cell's own scope."""
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
    """Names the cell looks up as it runs: what is inside functions is looked up later, and what it sets itself is its own."""
    loads = {n.id for n in _own(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return loads - bound(tree) - _ALWAYS


def read_anywhere(lines: list[str]) -> set[str]:
    """Names looked up in these lines, in functions too."""
    nodes = ast.walk(parse("\n".join(lines)))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def memory_of_results(tree: ast.AST, known: set[str]) -> set[str]:
    """`Out`, `_`, `_5`: names that only IPython fills in."""
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return {name for name in names - stored - known if _MEMORY.fullmatch(name)}


def imports(tree: ast.AST) -> set[str]:
    """Top-level packages, wherever they are imported; those in `try` may be missing."""
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
    """All nodes outside of functions. A comprehension's variables are its own, but `:=` in it is ours."""
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
