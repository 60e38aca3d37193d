"""Edits of a script by position: whole lines above and below statements, and text inside them. All else stays unchanged."""

from __future__ import annotations

import ast

from shoal.check.module import Module
from shoal.core.errors import Refused


class Patch:
    def __init__(self, module: Module):
        self._module = module
        self._lines = module.text.splitlines(keepends=True)
        self.newline = "\r\n" if self._lines and self._lines[0].endswith("\r\n") else "\n"
        self._edits: list[tuple[int, int, int, str, int]] = []
        """List of (line from 0, column, sequence number, new text, number of characters it replaces)."""

    def before(self, statement: ast.stmt, *lines: str) -> None:
        """Insert simple statements above a statement, with its indentation; on its line if another one precedes it there."""
        if self._is_first(statement):
            self._whole_lines(statement, (_first_line(statement)) - 1, lines)
        else:
            for line in lines:
                self.inline(statement, f"{line}; ")

    def after(self, statement: ast.stmt, *lines: str) -> None:
        """Insert simple statements below a statement; on its line if others stand beside it there."""
        if self.is_alone(statement):
            self._whole_lines(statement, statement.end_lineno or statement.lineno, lines)
        else:
            self.inline(statement, "".join(f"; {line}" for line in lines), end=True)

    def is_alone(self, statement: ast.stmt) -> bool:
        """Return whether no other statement (or head of a loop) is on the lines of a statement."""
        last = self._lines[(statement.end_lineno or 1) - 1].encode()
        rest = last[statement.end_col_offset :].decode().strip()
        return self._is_first(statement) and (rest == "" or rest.startswith("#"))

    def at_top(self, *lines: str) -> None:
        """Insert lines above all statements, but below the docstring and `from __future__` imports."""
        body = self._module.tree.body
        at = 0
        for statement in body:
            is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            if not (is_docstring or is_future):
                break
            at = statement.end_lineno or at
        self._put(at, 0, "".join(line + self.newline for line in lines))

    def inline(self, node: ast.AST, text: str, *, end: bool = False) -> None:
        """Insert text before a node, or after it with `end`."""
        line = (node.end_lineno if end else node.lineno) - 1  # type: ignore[attr-defined]
        column = node.end_col_offset if end else node.col_offset  # type: ignore[attr-defined]
        self._put(line, len(self._lines[line].encode()[:column].decode()), text)

    def inside(self, call: ast.Call, text: str) -> None:
        """Insert text before the closing bracket of a call."""
        line = (call.end_lineno or call.lineno) - 1
        before = self._lines[line].encode()[: (call.end_col_offset or 1) - 1]
        self._put(line, len(before.decode()), text)

    def replace(self, node: ast.expr, text: str) -> None:
        """Replace a node that is on one line; raise Refused for longer ones."""
        if node.lineno != node.end_lineno:
            raise Refused(
                f"The expression in line {node.lineno} spans several lines.",
                hint="Write it on one line, and try again.",
            )
        line = self._lines[node.lineno - 1].encode()
        start, end = (len(line[:at].decode()) for at in (node.col_offset, node.end_col_offset or 0))
        self._put(node.lineno - 1, start, text, end - start)

    def text(self) -> str:
        lines = list(self._lines)
        if lines and not lines[-1].endswith(("\n", "\r")):
            lines[-1] += self.newline
        for line, column, _, new, over in sorted(self._edits, reverse=True):
            if line >= len(lines):
                lines.insert(len(self._lines), new)
            else:
                lines[line] = lines[line][:column] + new + lines[line][column + over :]
        return "".join(lines)

    def indentation(self, node: ast.AST) -> str:
        line = self._lines[node.lineno - 1]  # type: ignore[attr-defined]
        return line[: len(line) - len(line.lstrip())]

    def _whole_lines(self, statement: ast.stmt, at: int, lines: tuple[str, ...]) -> None:
        space = self.indentation(statement)
        self._put(at, 0, "".join(space + line + self.newline for line in lines))

    def _is_first(self, statement: ast.stmt) -> bool:
        return not self._lines[statement.lineno - 1].encode()[: statement.col_offset].strip()

    def _put(self, line: int, column: int, text: str, over: int = 0) -> None:
        # Edits are applied from the last position to the first; at the same position, the newest edit first.
        self._edits.append((line, column, len(self._edits), text, over))


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])
