"""Runs tests under coverage, in all processes they start, and lists the modules that nothing reaches.

./scripts/test coverage [pytest arguments; default: tests]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = """
[run]
source = shoal
parallel = true
patch = subprocess, _exit
sigterm = true
data_file = {folder}/data
[json]
output = {folder}/report.json
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="shoal-coverage-") as folder:
        settings = Path(folder) / "settings.ini"
        settings.write_text(SETTINGS.format(folder=folder), encoding="utf-8")
        tool = [sys.executable, "-m", "coverage"]
        common = {"cwd": ROOT, "env": os.environ | {"COVERAGE_RCFILE": str(settings)}}
        tests = [*(sys.argv[1:] or ["tests"]), "-q", "-p", "no:cacheprovider"]
        code = subprocess.run([*tool, "run", "-m", "pytest", *tests], check=False, **common).returncode
        for step in (["combine", "-q"], ["json", "-q"]):
            subprocess.run([*tool, *step], check=True, **common)
        report(json.loads((Path(folder) / "report.json").read_text(encoding="utf-8")))
    return code


def report(found: dict[str, object]) -> None:
    """Print the share of lines reached, and each module of which less than a tenth is."""
    files = found["files"]
    unreached = sorted(
        (summary["percent_covered"], name)
        for name, summary in ((name, file["summary"]) for name, file in files.items())
        if summary["num_statements"] > 3 and summary["percent_covered"] < 10
    )
    print(f"\nlines reached: {found['totals']['percent_covered']:.1f} % in {len(files)} modules")
    print(
        "\n".join(f"hardly reached: {name} ({share:.0f} %)" for share, name in unreached) or "every module is reached"
    )


if __name__ == "__main__":
    sys.exit(main())
