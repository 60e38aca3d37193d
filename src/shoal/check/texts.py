"""Evaluation of string expressions as far as they are certain: paths built with `+`, f-strings, `join` and `Path`."""

from __future__ import annotations

import ast
from typing import NamedTuple

from shoal.check.arguments import Arguments
from shoal.check.module import Module

_JOINS = frozenset({"os.path.join", "posixpath.join", "pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath"})
_SAME = frozenset({"builtins.str", "os.fspath", "os.path.abspath", "os.path.normpath", "os.path.expanduser"})
_SAME_METHODS = frozenset({"resolve", "absolute", "expanduser", "as_posix", "format"})
_DEPTH = 20


class Text(NamedTuple):
    start: str
    """Text that the value certainly begins with."""
    whole: bool
    """True if `start` is the whole value."""


class Texts:
    """Texts of the expressions of one file; `arguments` gives the values from the command line."""

    def __init__(self, module: Module, arguments: Arguments | None = None):
        self._module, self._arguments = module, arguments

    def of(self, node: ast.expr | None, depth: int = 0) -> Text | None:
        """Return the text of an expression; None if not even its beginning is known."""
        if node is None or depth > _DEPTH:
            return None
        match node:
            case ast.Constant(value=str(text)):
                return Text(text, True)
            case ast.JoinedStr():
                return self._joined([(part, "") for part in node.values], depth)
            case ast.FormattedValue():
                return self.of(node.value, depth + 1)
            case ast.BinOp(op=ast.Add()):
                return self._joined([(node.left, ""), (node.right, "")], depth)
            case ast.BinOp(op=ast.Div()):
                return self._joined([(node.left, ""), (node.right, "/")], depth)
            case ast.Call():
                return self._of_call(node, depth)
            case ast.Name() | ast.Attribute():
                return self._of_name(node, depth)
        return None

    def _of_call(self, node: ast.Call, depth: int) -> Text | None:
        called = self._module.called(node)
        if called <= _JOINS and node.args and not any(isinstance(a, ast.Starred) for a in node.args):
            return self._joined([(part, "/" if index else "") for index, part in enumerate(node.args)], depth)
        if called <= _SAME and len(node.args) == 1:
            return self.of(node.args[0], depth + 1)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_METHODS:
            found = self.of(node.func.value, depth + 1)
            if node.func.attr == "format" and found is not None:
                return Text(found.start.partition("{")[0], "{" not in found.start)
            return found
        return None

    def _of_name(self, node: ast.Name | ast.Attribute, depth: int) -> Text | None:
        if isinstance(node, ast.Attribute) and self._arguments is not None:
            known, value = self._arguments.value_of(self._module, node)
            if known:
                return Text(value, True) if isinstance(value, str) else self.of(value, depth + 1)
        if isinstance(node, ast.Name) and self._arguments is not None:
            named = self._arguments.text_named(node.id)
            if named is not None:
                return Text(named, True)
        values = self._module.values(node)
        if values is None or len(values) != 1 or values[0] is node:
            return None
        return self.of(values[0], depth + 1)

    def _joined(self, parts: list[tuple[ast.expr, str]], depth: int) -> Text | None:
        start = ""
        for index, (part, between) in enumerate(parts):
            found = self.of(part, depth + 1)
            if found is None:
                return Text(start + between, False) if index and start else None
            if between and found.start.startswith("/"):
                start, between = "", ""
            start = (start.rstrip("/") if between else start) + between + found.start
            if not found.whole:
                return Text(start, False)
        return Text(start, True)
