"""Runs public projects unmodified and writes the page about it. None of their code is in this repository.

Every project of scripts/compat.json whose checkout is in the folder given by --repos is copied, prepared and run by `shoal run`;
what happened is noted in the manifest, with the project's revision. The page shows the manifest.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "scripts" / "compat.json"
PAGE = ROOT / "docs" / "explanation" / "compatibility.md"
LIMIT_S = 900
_HEAD = """# Compatibility

Public projects by kind, and what happened when they were run as they are. This page is written by `./scripts/compat` from
`scripts/compat.json`; with `--repos FOLDER` it runs each project whose checkout is in that folder, on CPUs, and notes the
result. None of their code is in Shoal. Scripts of our own in the same styles are part of the tests.
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./scripts/compat", description="Run public projects unmodified.")
    parser.add_argument("--repos", type=Path, help="folder with checkouts, each named as its repository")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is stale")
    parser.add_argument("names", nargs="*", help="projects to run (default: all that are there)")
    asked = parser.parse_args(argv)
    projects = json.loads(MANIFEST.read_text())
    if asked.repos is not None:
        for project in projects:
            if not asked.names or project["name"] in asked.names:
                try_project(project, asked.repos)
        MANIFEST.write_text(dump(projects))
    text = page(projects)
    if asked.check:
        return 0 if PAGE.is_file() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


def try_project(project: dict[str, Any], repos: Path) -> None:
    """Run a project, if its checkout is there, and note the result in it."""
    checkout = repos / project["url"].rstrip("/").rpartition("/")[2]
    if not checkout.is_dir():
        print(f"{project['name']}: no checkout ({checkout})", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="compat-") as name:
        copy = Path(name) / "code"
        shutil.copytree(checkout, copy, symlinks=True)
        code, said = run_project(project, copy / project.get("folder", ""))
    revision = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    project["tried"] = {
        "on": time.strftime("%Y-%m-%d"),
        "revision": revision or "unknown",
        "result": "runs" if code == 0 else "fails",
        "said": "" if code == 0 else said,
    }
    print(f"{project['name']}: {project['tried']['result']} {said}", file=sys.stderr)


def run_project(project: dict[str, Any], folder: Path) -> tuple[int, str]:
    """Prepare and run a copy of a project; return the exit code and the last line of the output."""
    options = ["--nproc", str(project["nproc"])] + (["--emulate-cuda"] if project.get("emulate_cuda") else [])
    script, *arguments = project["run"]
    commands = [*project["before"], [sys.executable, "-m", "shoal.cli", "run", *options, script, "--", *arguments]]
    said = ""
    for command in commands:
        command = [sys.executable if word == "python" else word for word in command]
        try:
            done = subprocess.run(
                command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                timeout=LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return 1, f"not finished after {LIMIT_S // 60} minutes"
        said = next((line.strip() for line in reversed(done.stdout.splitlines()) if line.strip()), "")[:200]
        if done.returncode != 0:
            return done.returncode, said
    return 0, said


def page(projects: list[dict[str, Any]]) -> str:
    """Return the page for a manifest."""
    lines = [_HEAD]
    for kind in dict.fromkeys(project["kind"] for project in projects):
        lines += [f"## {kind[0].upper()}{kind[1:]}", "", "| project | tried with | result |", "| --- | --- | --- |"]
        lines += [_row(project) for project in projects if project["kind"] == kind]
        lines.append("")
    return "\n".join(lines)


def _row(project: dict[str, Any]) -> str:
    options = f"--nproc {project['nproc']}" + (" --emulate-cuda" if project.get("emulate_cuda") else "")
    folder = f"`{project['folder']}`: " if project.get("folder") else ""
    tried, note = project["tried"], f" {project['note']}" if project["note"] else ""
    if tried is None:
        result = "not run with this version yet."
    else:
        said = f": `{tried['said'].replace('|', '/').replace('`', chr(39))}`" if tried["said"] else "."
        result = f"{tried['result']} ({tried['revision']}, {tried['on']}){said}"
    return f"| [{project['name']}]({project['url']}) | {folder}`{options} {project['run'][0]}` | {result}{note} |"


def dump(projects: list[dict[str, Any]]) -> str:
    """Return the manifest as text, one project on a few lines."""
    return json.dumps(projects, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
