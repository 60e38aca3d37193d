"""Runs the test files that reach what differs from main, by the import graph.

    ./scripts/test changed [--base REV] [--list] [pytest arguments]

A test file is chosen when it is changed itself or when it imports, directly or through other modules, a module that is.
Other files have their own readers: pages are read by the tests of the docs, templates and scripts of the console by the tests
of its pages. Tests that only start a server as a process do not import it: the process tier covers those.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READERS = {
    "docs/": ["tests/unit/docs"],
    "README.md": ["tests/unit/docs"],
    "CHANGELOG.md": ["tests/unit/docs"],
    "CONTRIBUTING.md": ["tests/unit/docs"],
    "pyproject.toml": ["tests/unit/docs"],
    "examples/": ["tests/unit/docs", "tests/unit/check", "tests/integration/test_examples.py"],
    "src/shoal/server/web/": ["tests/unit/server"],
    "console/": ["tests/unit/server/test_web_weight.py"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the test files that reach what differs from main.")
    parser.add_argument("--base", default="main", help="compare with this revision (default: main)")
    parser.add_argument("--list", action="store_true", help="print the files instead of running them")
    options, rest = parser.parse_known_args()
    chosen = choose(changed_files(options.base))
    if options.list or not chosen:
        print("\n".join(chosen) or f"No test file reaches what differs from {options.base}.")
        return 0
    print(f"{len(chosen)} test files reach what differs from {options.base}", file=sys.stderr)
    processes = os.environ.get("SHOAL_TEST_PROCESSES", "auto")
    command = [sys.executable, "-m", "pytest", "-q", "-n", processes, "--dist", "loadfile", *chosen, *rest]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def changed_files(base: str) -> list[str]:
    """List what was committed since `base`, what is not committed yet, and what git does not know yet."""
    since = _git("merge-base", base, "HEAD")[0]
    return sorted({*_git("diff", "--name-only", since), *_git("ls-files", "--others", "--exclude-standard")})


def choose(changed: list[str]) -> list[str]:
    """Map changed files to the test files that reach them."""
    importers = importers_by_file()
    reached, todo = set(changed), list(changed)
    while todo:
        for importer in importers[todo.pop()] - reached:
            reached.add(importer)
            todo.append(importer)
    tests = {name for name in reached if _is_test(name) and (ROOT / name).is_file()}
    for name in changed:
        for start, readers in READERS.items():
            tests |= set(readers) if name.startswith(start) and not name.endswith(".py") else set()
    return sorted(name for name in tests if not any(Path(name).is_relative_to(t) for t in tests - {name}))


def importers_by_file() -> dict[str, set[str]]:
    """Map each file to the files that import it; a `conftest.py` counts as imported by the tests below its folder."""
    sources = {path: str(path.relative_to(ROOT)) for top in ("src", "tests") for path in (ROOT / top).rglob("*.py")}
    modules = {_module(path): name for path, name in sources.items()}
    by_stem = defaultdict(set)  # helpers of the tests are imported by their bare name
    for path, name in sources.items():
        if name.startswith("tests/"):
            by_stem[path.stem].add(name)
    importers: dict[str, set[str]] = defaultdict(set)
    for path, name in sources.items():
        for module in _imports(path):
            found = {modules[module]} if module in modules else by_stem.get(module, set())
            for target in found:
                importers[target].add(name)
        if path.name == "conftest.py":
            importers[name] |= {other for below, other in sources.items() if path.parent in below.parents}
    return importers


def _imports(path: Path) -> set[str]:
    """List the modules a file imports, with `from a import b` as both `a` and `a.b`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_test(name: str) -> bool:
    return name.startswith("tests/") and Path(name).name.startswith("test_")


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"git {' '.join(words)}: {done.stderr.strip()}\nName a revision to compare with: --base REV")
    return done.stdout.split()


if __name__ == "__main__":
    sys.exit(main())
