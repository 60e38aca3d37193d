"""Small pieces of Markdown, and what a class says of its fields in the strings below them."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(c) for c in line) + " |" for line in lines) + "\n"


def cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def prose(text: str) -> str:
    """Text of a docstring: what looks like HTML is escaped, outside of code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(p if p.startswith("`") else p.replace("<", "\\<") for p in parts)


def anchor(heading: str) -> str:
    """As forges make them: lower case, spaces to dashes, punctuation gone."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def field_docs(cls: type) -> dict[str, str]:
    """Name → the string that follows the field in the class, its bases' included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("shoal"):
            found |= _docs_in(base)
    return found


@functools.cache
def _docs_in(cls: type) -> dict[str, str]:
    body = _classes(cls.__module__)[cls.__qualname__]
    found = {}
    for node, following in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(node, ast.AnnAssign | ast.Assign) and is_text:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            found[ast.unparse(target)] = str(following.value.value)  # type: ignore[attr-defined]
    return found


@functools.cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module's source by qualified name; to look for each by itself is to read the source as often."""
    found: dict[str, ast.ClassDef] = {}

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[prefix + node.name] = node
                walk(node.body, f"{prefix}{node.name}.")

    walk(ast.parse(inspect.getsource(sys.modules[module])).body, "")
    return found
