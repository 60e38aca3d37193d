"""Prints what a reader of the code meets, for two commits side by side: large folders, fragments, comments, deleted lines.

`python scripts/tree_numbers.py [BEFORE] [AFTER]` compares 6a1c060, the last commit with the old names, with the working tree.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
from collections import Counter
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import words

ROOT = words.ROOT
CONCURRENT = {"threading", "asyncio", "multiprocessing", "concurrent", "queue", "signal"}
"""Modules of the standard library; a file that imports one of them counts as concurrent code."""
SAFE = re.compile(r"\bwhy (this|it) is safe\b", re.IGNORECASE)
"""Beginning of an explanation of concurrent code: who owns what, which lock, what a crash leaves."""
LARGE = 30
EXEMPT = {"core", "client"}


def measure(package: Path) -> dict[str, str]:
    """Return the numbers of a copy of `src/shoal`."""
    modules: Counter[str] = Counter()
    docstrings = fragments = lines = concurrent = comments = explained = 0
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text)))
        found = [text for _, text in words.docstrings(nodes)]
        modules[str(path.parent.relative_to(package))] += path.name != "__init__.py"
        docstrings += len(found)
        fragments += sum(bool(words.FRAGMENT.match(text)) for text in found)
        lines += len(text.splitlines())
        if _imported(nodes) & CONCURRENT:
            concurrent += 1
            explained += bool(SAFE.search(text))
            comments += sum(line.lstrip().startswith("# ") for line in text.splitlines())
    large = sorted((name for name, n in modules.items() if n > LARGE and name not in EXEMPT), key=modules.get)
    return {
        "lines of Python": f"{lines:,}",
        f"folders over {LARGE} modules": ", ".join(f"{name} {modules[name]}" for name in large) or "none",
        "docstrings": f"{docstrings:,}",
        "docstrings that begin as fragments": f"{fragments:,} ({fragments / docstrings:.1%})",
        "concurrent modules": f"{concurrent}",
        'of them with "why this is safe"': f"{explained}",
        "comment lines of their own in them": f"{comments:,}",
    }


def _imported(nodes: list[ast.AST]) -> set[str]:
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.split(".")[0] for name in names}


def measure_commit(commit: str) -> dict[str, str]:
    """Return the numbers of a commit."""
    packed = subprocess.run(["git", "-C", ROOT, "archive", commit, "src/shoal"], capture_output=True, check=True).stdout
    with TemporaryDirectory() as folder, tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
        return measure(Path(folder) / "src/shoal")


def changed_lines(before: str, after: str | None) -> tuple[str, str]:
    """Return how many lines of `src/shoal` were added and deleted; files that moved count only where they differ."""
    versions = [before, after] if after else [before]
    command = ["git", "-C", ROOT, "diff", "--numstat", "-M", *versions, "--", "src/shoal"]
    rows = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    counts = [(int(a), int(d)) for a, d in (row.split("\t")[:2] for row in rows) if a != "-"]
    return f"{sum(a for a, _ in counts):,}", f"{sum(d for _, d in counts):,}"


def main(arguments: list[str]) -> int:
    """Print the table of both commits."""
    before = arguments[0] if arguments else "6a1c060"
    after = arguments[1] if len(arguments) > 1 else None
    old, new = measure_commit(before), measure_commit(after) if after else measure(ROOT / "src/shoal")
    print(f"{'':36}{before:>32}{after or 'working tree':>32}")
    for name in old:
        print(f"{name:36}{old[name]:>32}{new[name]:>32}")
    added, deleted = changed_lines(before, after)
    print(f"{'lines added / deleted between them':36}{'':>32}{f'{added} / {deleted}':>32}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
