"""Check of a source with all rules; findings are sorted by file and line."""

from __future__ import annotations

import ast
import posixpath

from shoal.check import rules
from shoal.check.frameworks import frameworks_of
from shoal.check.ignores import ALL, ignored
from shoal.check.job_facts import JobFacts
from shoal.check.program import MAX_BYTES, Broken, Program, read_program
from shoal.check.registry import RULES, Hit, Rule
from shoal.check.source import Source
from shoal.core.checks import CodeCheckView, Finding, Severity

LIKELY = ("train.py", "main.py")
SYNTAX = "syntax"
_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.HINT: 2}


def check(
    source: Source, entry: str | None = None, asked: JobFacts | None = None, *, max_bytes: int = MAX_BYTES
) -> CodeCheckView:
    """Check the entry, or without one train.py or main.py of the root, or else every script that no other one imports."""
    rules.load()
    asked = asked or JobFacts()
    entries = [entry] if entry else _entries(source)
    programs = [read_program(source, each, max_bytes) for each in entries]
    if entry is None and len(programs) > 1:
        imported = {m.path for p in programs for m in p.modules if m.path != p.entry}
        programs = [p for p in programs if p.entry not in imported]
    found: dict[tuple[str, str, int, int], Finding] = {}
    for program in programs:
        for finding in _findings(program, asked):
            found.setdefault((finding.rule, finding.path, finding.line, finding.column), finding)
    first = list(dict.fromkeys(m.path for p in programs for m in p.modules))
    return CodeCheckView(
        entry=entries[0] if len(programs) == 1 else None,
        frameworks=list(dict.fromkeys(name for p in programs for name in frameworks_of(p))),
        files=len(first),
        findings=sorted(found.values(), key=lambda f: (f.path, f.line, f.column, _ORDER[f.severity])),
    )


def _entries(source: Source) -> list[str]:
    for likely in LIKELY:
        if likely in source.paths:
            return [likely]
    return sorted(path for path in source.paths if path.endswith(".py") and posixpath.basename(path) != "setup.py")


def _findings(program: Program, asked: JobFacts) -> list[Finding]:
    found = [_broken(broken) for broken in program.broken]
    silent = {module.path: ignored(module.text) for module in program.modules}
    for rule in RULES.values():
        for hit in rule.find(program, asked):
            line = getattr(hit.node, "lineno", 1)
            unwanted = silent[hit.module.path].get(line, set())
            if not unwanted & {rule.id, ALL}:
                found.append(_finding(rule, hit, line))
    return found


def _finding(rule: Rule, hit: Hit, line: int) -> Finding:
    column = getattr(hit.node, "col_offset", 0)
    text = hit.module.lines[line - 1] if line <= len(hit.module.lines) else ""
    # ast counts columns in bytes; findings count characters.
    start = len(text.encode()[:column].decode(errors="ignore"))
    return Finding(
        rule=rule.id,
        severity=hit.severity or rule.severity,
        path=hit.module.path,
        line=line,
        column=start + 1,
        length=max(1, _end(hit.node, line, text) - start),
        message=hit.message,
        why=hit.why or rule.why,
        fix=hit.fix or rule.fix,
    )


def _end(node: ast.AST, line: int, text: str) -> int:
    if getattr(node, "end_lineno", None) != line:
        return len(text.rstrip())
    return len(text.encode()[: getattr(node, "end_col_offset", 0)].decode(errors="ignore"))


def _broken(broken: Broken) -> Finding:
    return Finding(
        rule=SYNTAX,
        severity=Severity.ERROR,
        path=broken.path,
        line=broken.line,
        column=broken.column,
        message=f"Python cannot read this file: {broken.message}.",
        why="The job would fail when Python reads the file.",
        fix="Correct it, and test it with: python -m py_compile " + broken.path,
    )
