"""Preflight nodes: the script runs under `shoal.preflight`, its output is discarded, and the report is sent with the result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.agent.node.workdir import WorkDir
from shoal.agent.wire import JoinReply
from shoal.agent.workers.runtime import Command

VARIABLE = "SHOAL_PREFLIGHT"
_LAUNCH = Path(__file__).parents[2] / "preflight" / "launch.py"
_REPORT = "preflight.json"
_MOST = 1 << 20


def is_preflight(join: JoinReply) -> bool:
    return VARIABLE in join.env


def command(usual: Command, join: JoinReply) -> Command:
    """Return the command, run by the preflight launcher if this node is a preflight."""
    if not is_preflight(join):
        return usual
    python, unbuffered, *words = usual.argv
    return usual._replace(argv=[python, unbuffered, str(_LAUNCH), *words])


def env(join: JoinReply, spool: str, output: str) -> dict[str, str]:
    """Return the variable with the preflight options of the job plus this node's report and output paths."""
    if not is_preflight(join):
        return {}
    asked = json.loads(join.env[VARIABLE])
    return {VARIABLE: json.dumps({**asked, "report": f"{spool}/{_REPORT}", "output": output})}


def out(work: WorkDir, join: JoinReply) -> Path:
    """Return the folder to upload checkpoints from; for a preflight, a folder that never has any."""
    return work.tmp / "no-checkpoints" if is_preflight(join) else work.root / "output-checkpoint"


def with_report(work: WorkDir, join: JoinReply, result: dict[str, Any], redact: Callable[[str], str]) -> dict[str, Any]:
    """Return the node's result, with the preflight report added if this node is a preflight."""
    if not is_preflight(join):
        return result
    report = _read(work.spool("sdk") / _REPORT, redact)
    if not report["complete"] and not result["told"] and not report["findings"] and result["exit_code"] != 0:
        report["findings"].append(_ended_otherwise(result))
    return {**result, "preflight": report}


def _read(path: Path, redact: Callable[[str], str]) -> dict[str, Any]:
    """Return the report the script's process wrote. Its content is untrusted; the server validates it."""
    report: Any = None
    with suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            report = json.loads(redact(file.read(_MOST).decode()))
    if not isinstance(report, dict) or not isinstance(report.get("findings"), list):
        report = {"findings": []}
    return {"complete": False, **report}


def _ended_otherwise(result: dict[str, Any]) -> dict[str, Any]:
    """Return the finding for a run that ended by a signal or before the script began, and so without a report."""
    from shoal.preflight.rules import RULES

    rule = "environment" if result["failed_rank"] is None else "killed"
    known = RULES[rule]
    message = result["reason"] or f"exit code {result['exit_code']}"
    return {"rule": rule, "severity": known.severity, "message": message, "why": known.why, "fix": known.fix}
