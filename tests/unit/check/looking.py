"""A project made for one test, and what the check says about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.check.job_facts import JobFacts
from shoal.check.runner import check
from shoal.check.source import Source
from shoal.core.checks import CodeCheckView
from shoal.store.ignore import scan


def look(folder: Path, files: dict[str, str], entry: str | None = "train.py", **asked: Any) -> CodeCheckView:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return check(Source(folder, [f.path for f in scan(folder).files]), entry, JobFacts(**asked))


def rules(view: CodeCheckView) -> list[str]:
    return [finding.rule for finding in view.findings]
