"""`python -m generator [--check]`: write docs/reference, or tell what of it is stale."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from generator import pages

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Write docs/reference from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    check = parser.parse_args(argv).check
    stale = 0
    for name, text in pages().items():
        path = REFERENCE / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old == text:
            continue
        stale += 1
        if check:
            print(_summary(name, old, text), file=sys.stderr)
        else:
            REFERENCE.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/reference/{name}", file=sys.stderr)
    if check and stale:
        print(f"{stale} page(s) of docs/reference are stale: run scripts/docs", file=sys.stderr)
        return 1
    return 0


def _summary(name: str, old: str, new: str, most: int = 12) -> str:
    lines = list(
        difflib.unified_diff(old.splitlines(), new.splitlines(), "committed", "from the code", n=0, lineterm="")
    )
    changed = [line for line in lines[2:] if not line.startswith("@@")]
    added = sum(line.startswith("+") for line in changed)
    shown = "\n".join(f"    {line}" for line in changed[:most]) + ("\n    …" if len(changed) > most else "")
    return f"docs/reference/{name}: {added} lines to add, {len(changed) - added} to remove\n{shown}"


if __name__ == "__main__":
    sys.exit(main())
