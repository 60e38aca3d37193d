"""Small pieces of Markdown, and the field descriptions of classes: the strings below the fields."""

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
    """Return the text of a docstring for Markdown: outside of code, `<` is escaped."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(p if p.startswith("`") else p.replace("<", "\\<") for p in parts)


def anchor(heading: str) -> str:
    """Return the anchor that forges give a heading: lower case, dashes for spaces, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def field_docs(cls: type) -> dict[str, str]:
    """Return field name → the string that follows it in the class or its bases."""
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
    """Return the classes of a module's source by qualified name. Cached, because each lookup would parse the source again."""
    found: dict[str, ast.ClassDef] = {}

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[prefix + node.name] = node
                walk(node.body, f"{prefix}{node.name}.")

    walk(ast.parse(inspect.getsource(sys.modules[module])).body, "")
    return found
