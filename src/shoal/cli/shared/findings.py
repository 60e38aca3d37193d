"""Display of code findings: in full with their source lines, or one line each while a job is submitted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.shared.format import clean, plural
from shoal.cli.shared.output import out
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.check.job_facts import JobFacts
    from shoal.check.source import Source
    from shoal.client import Client
    from shoal.core.checks import CodeCheckView, Finding
    from shoal.core.jobs import JobSpec
    from shoal.core.preflight import PreflightFinding

STYLES = {"error": "bold red", "warning": "yellow", "hint": "cyan"}
_MOST_ON_SUBMIT = 5


def print_findings(view: CodeCheckView, source: Source) -> None:
    texts: dict[str, list[str]] = {}
    for finding in view.findings:
        if finding.path not in texts:
            texts[finding.path] = (source.read(finding.path) or "").splitlines()
        _print(finding, texts[finding.path])
    how = f" ({', '.join(view.frameworks)})" if view.frameworks else ""
    out.info(f"{plural(view.files, 'file')}{how}: {counts(view.findings)}.")


def counts(findings: Sequence[Finding] | Sequence[PreflightFinding]) -> str:
    """Return the number of findings per severity, such as "1 error, 2 warnings"."""
    found = [plural(n, s) for s in STYLES if (n := sum(f.severity == s for f in findings))]
    return ", ".join(found) or "nothing found"


def warn_on_submit(
    spec: JobSpec, root: Path, paths: Sequence[str], entry: Sequence[str], *, lasting: bool = True
) -> None:
    """Check the code of a job that is being submitted and print warnings. Never blocks the job, even if the check fails.

    With `lasting=False` the root is a temporary folder: the fixes are printed too, as no later command can check it.
    """
    from shoal.check.job_facts import MOST_BYTES, facts_of
    from shoal.check.runner import check
    from shoal.check.source import Source

    script, asked = facts_of(spec, entry)
    if script is None or script not in paths:
        return
    try:
        findings = check(Source(root, paths), script, asked, max_bytes=MOST_BYTES).findings
    except Exception as error:
        out.dim(f"The code was not checked: {type(error).__name__}: {error}")
        return
    serious = _warn(findings, with_fix=not lasting)
    if serious and lasting:
        more = f"{serious - _MOST_ON_SUBMIT} more, and " if serious > _MOST_ON_SUBMIT else ""
        out.dim(f"  {more}why and what to do: {_command(spec, root, script, asked)}")


def warn_of_fetched(client: Client, spec: JobSpec) -> None:
    """Print warnings for code that the server has fetched (a repository or a notebook URL) and checks itself."""
    try:
        found = client.sources.check(spec)
    except ShoalError as error:  # such as an older server without this route
        out.dim(f"The code was not checked: {clean(error.message)}")
        return
    _warn(found.findings, with_fix=True)


def _warn(findings: Sequence[Finding], *, with_fix: bool) -> int:
    """Print the first errors and warnings; return how many there are. Hints are not counted."""
    serious = [f for f in findings if f.severity != "hint"]
    for finding in serious[:_MOST_ON_SUBMIT]:
        out.warn(f"{clean(finding.path)}:{finding.line}: {clean(finding.message)} [{finding.rule}]")
        if with_fix:
            out.dim(f"  fix: {clean(finding.fix)}")
    return len(serious)


def _command(spec: JobSpec, root: Path, script: str, asked: JobFacts) -> str:
    """Return the `shoal check` command that shows the same findings in full."""
    here = root.resolve() == Path.cwd()
    words = [out.prog, "check", script if here else str(root / script), *([] if here else ["--dir", str(root)])]
    words += ["--nodes", str(asked.nodes)] if asked.nodes > 1 else []
    words += ["--accels", str(asked.accels)] if asked.accels > 1 else []
    words += [word for name in spec.datasets for word in ("--dataset", name)]
    return shlex.join([*words, "--", *asked.args] if asked.args else words)


def _print(finding: Finding, lines: list[str]) -> None:
    where = f"{clean(finding.path)}:{finding.line}:{finding.column}"
    out.styled(
        (where, "bold"),
        ": ",
        (finding.severity, STYLES[finding.severity]),
        f": {clean(finding.message)} ",
        (f"[{finding.rule}]", "dim"),
    )
    if 0 < finding.line <= len(lines):
        text = lines[finding.line - 1]
        shown, number = clean(text.strip()), str(finding.line)
        caret = " " * max(0, finding.column - 1 - (len(text) - len(text.lstrip()))) + "^" * finding.length
        out.line(f"  {number} | {shown}")
        out.styled(f"  {' ' * len(number)} | ", (caret, STYLES[finding.severity]))
    out.styled("  why: ", (clean(finding.why), "dim"))
    out.line(f"  fix: {clean(finding.fix)}")
    out.line()
