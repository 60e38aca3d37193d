"""Finds docstrings that begin in the middle of a sentence, words that readers stumble over, and names that say little.

`python scripts/words.py [FOLDER…]` prints one line per finding. Without folders it checks the package,
the documentation, the examples, benchmarks and scripts.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKED = ("src/shoal", "docs", "examples", "bench", "scripts", "README.md", "CONTRIBUTING.md")
FRAGMENT = re.compile(
    r"(After|Among|And|As|At|Because|Before|Between|But|By|For|From|How|If|In|Of|On|Or|Out|Since|Than|That|To|Those|Under|Until"
    r"|Whatever|What|Wherever|Where|Whether|When|Which|Whoever|Whom|Whose|Who|Without|With)\b"
)
PET_WORDS = re.compile(
    r"\b(anew|foretells?|foretold|who(m?)ever|somebody|at hand|lacks|go(es)? on|(is|are|was|were) thrown out|all told|whence|thereof)\b",
    re.IGNORECASE,
)
SOURCE = "src/shoal"
"""Folder whose functions and classes have their names checked."""
VAGUE_NAMES = re.compile(
    r"asks?|asked|asking|gates?|good|hears?|heard|keepers?|lacks?|lacking|lanes?|leaves?|leaving|looks?|looked|looking|meters?"
    r"|neighbou?rs?|news|says?|said|settles?|settled|shown|takes?|taken|taking|tells?|telling|tending|told|took|wish|wishes"
)
"""Words that named functions and classes with many meanings: request, report, pop, reserve, record, poll… say which."""
_SWARMS = (
    "swarm/",
    "compat/swarm/",
    "cli/swarm/",
    "client/swarm_peers.py",
    "server/swarms/",
    "server/routers/swarm_peers.py",
)
ALLOWED_NAMES = {
    # A peer joins and leaves a swarm: `optimizer.leave()`, `POST /swarm/leave`. Public since 0.1.
    "leave": _SWARMS, "_leave": _SWARMS, "_leave_at_exit": _SWARMS,
    # Python's protocol of files.
    "tell": ("client/_reading.py", "data/filesystem.py", "server/web/files/arrow_reader.py", "tune/search.py"),
    # Searchers have the interface of optuna: ask and tell.
    "ask": ("tune/search.py",),
    # The command `shoal machine snapshot take`.
    "take": ("cli/machine/snapshot.py",),
    # The error code `name_taken`.
    "NameTaken": ("core/errors.py",),
    # A method that servers of 0.1 call on actors that run already.
    "news": ("engines/ray/actor.py",),
}  # fmt: skip
"""Names that are kept, and where."""


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of modules, classes, functions and variables with their lines."""
    for node in nodes:
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for place, statement in enumerate(body):
            documented = (
                isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and place == 0
            )
            documented |= place > 0 and isinstance(body[place - 1], ast.Assign | ast.AnnAssign)
            value = getattr(statement, "value", None)
            if (
                documented
                and isinstance(statement, ast.Expr)
                and isinstance(value, ast.Constant)
                and isinstance(value.value, str)
            ):
                yield statement.lineno, value.value.strip()


def texts(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield every string of a module that may reach a reader: those with a space in them."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def vague_names(nodes: Iterable[ast.AST], path: str) -> Iterator[tuple[int, str]]:
    """Yield the functions and classes whose names contain a word of VAGUE_NAMES. `path` is relative to SOURCE."""
    for node in nodes:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        words = re.split(r"_|(?<=[a-z0-9])(?=[A-Z])", node.name)
        if words[0] == "test" or path.startswith(ALLOWED_NAMES.get(node.name, ())):
            continue
        if any(VAGUE_NAMES.fullmatch(word.lower()) for word in words):
            yield node.lineno, node.name


def findings(path: Path) -> Iterator[str]:
    """Yield what is wrong with a Python, Markdown or HTML file, as `path:line: text`."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    if path.suffix == ".py":
        nodes = list(ast.walk(ast.parse(text)))
        for line, docstring in docstrings(nodes):
            if FRAGMENT.match(docstring):
                yield f"{name}:{line}: begins as a fragment: {docstring.splitlines()[0]}"
        if name.is_relative_to(SOURCE):
            for line, vague in vague_names(nodes, name.relative_to(SOURCE).as_posix()):
                yield f"{name}:{line}: a name that does not say what it does: {vague}"
        lines = texts(nodes)
    else:
        lines = enumerate([] if "reference" in path.parts else text.splitlines(), 1)  # generated from the code
    for line, words in lines:
        if found := PET_WORDS.search(words):
            yield f"{name}:{line}: says {found[0]!r}: {words.strip().splitlines()[0]}"


def files(folders: list[Path]) -> Iterator[Path]:
    """Yield the files below the folders that are checked."""
    for folder in folders:
        for path in sorted([folder] if folder.is_file() else folder.rglob("*")):
            if (
                path.suffix in {".py", ".md", ".html"}
                and "vendor" not in path.parts
                and path != Path(__file__).resolve()
            ):
                yield path


def main(arguments: list[str]) -> int:
    """Print the findings of the folders; return 1 where there are any."""
    folders = [Path(argument).resolve() for argument in arguments] or [ROOT / name for name in CHECKED]
    found = [finding for path in files(folders) for finding in findings(path)]
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
