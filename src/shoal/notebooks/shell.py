"""Shell commands of a notebook: split into parts and words, and written as Python strings."""

from __future__ import annotations

import ast
import builtins
import re
import shlex
from collections.abc import Iterator, Set

from shoal.notebooks.lines import NOT_PYTHON

_SEPARATED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(&&|\|\||;|(?<![>&])&(?![>&\d]))""")
_EXPANDED = re.compile(r"\$\$|\$\{|\$[A-Za-z_]\w*|\{[^{}]*\}")
_UNQUOTED_BOUND = re.compile(r"(?<=[\w\]])\s*([<>]=?|[=~!]=)\s*(?=\d)")
_REDIRECTED = re.compile(r"\s+(?:\d?>{1,2}\s*(?:&\d|\S+)|&>\s*\S+)$|\s*\|.*$")


def parts(command: str) -> list[str]:
    """Return the commands of a line, in order: `a && b; c` are three."""
    made, start = list[str](), 0
    for found in _SEPARATED.finditer(command):
        if found[1]:
            made.append(command[start : found.start()])
            start = found.end()
    return [part.strip() for part in [*made, command[start:]] if part.strip()]


def words_of(command: str) -> list[str]:
    """Return the words of a command as a shell would pass them, without redirections; `torch>=2` stays one word."""
    bare = _UNQUOTED_BOUND.sub(r"\1", command)
    while (shorter := _REDIRECTED.sub("", bare)) != bare:
        bare = shorter
    try:
        return shlex.split(bare, comments=True)
    except ValueError:
        return bare.split()


def urls_of(words: list[str]) -> Iterator[str]:
    yield from (word for word in words if re.match(r"(https?|ftp|gs|s3)://", word))


def expression(command: str, known: Set[str]) -> str:
    """Return the command as a Python string in which `{expression}` and `$name` of the notebook's names are inserted.

    Anything else in braces or after a dollar sign is left to the shell.
    """
    values: list[ast.expr] = []
    at, literal = 0, ""
    for found in _EXPANDED.finditer(command):
        inner = _python_of(found[0], known)
        literal += command[at : found.start()]
        at = found.end()
        if found[0] == "$$":
            literal += "$"
        elif inner is None:
            literal += found[0]
        else:
            values += [ast.Constant(literal), ast.FormattedValue(inner, -1)]
            literal = ""
    literal += command[at:]
    if not values:
        return repr(literal)
    try:
        return ast.unparse(ast.JoinedStr([*values, ast.Constant(literal)]))
    except ValueError:  # quotes of all kinds inside
        texts = [v.value if isinstance(v, ast.FormattedValue) else v for v in [*values, ast.Constant(literal)]]
        return " + ".join(f"str({ast.unparse(t)})" for t in texts)


def uses_names(command: str, known: Set[str]) -> bool:
    """Check whether a command depends on the notebook's variables."""
    return any(_python_of(found[0], known) is not None for found in _EXPANDED.finditer(command))


def _python_of(text: str, known: Set[str]) -> ast.expr | None:
    if text in ("$$", "${"):
        return None
    try:
        tree = ast.parse(text[1:] if text[0] == "$" else text[1:-1].strip(), mode="eval").body
    except NOT_PYTHON:
        return None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    is_ours = names and all(name in known or hasattr(builtins, name) for name in names) and names & known
    return tree if is_ours else None
