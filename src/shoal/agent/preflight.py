"""A node that only tries a job: its script runs below `shoal.preflight`, nothing it writes is kept, and its report goes with its end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.agent.node import WorkDir
from shoal.agent.runtime import Command
from shoal.agent.wire import JoinReply

VARIABLE = "SHOAL_PREFLIGHT"
_LAUNCH = Path(__file__).parents[1] / "preflight" / "launch.py"
_REPORT = "preflight.json"
_MOST = 1 << 20


def is_one(join: JoinReply) -> bool:
    return VARIABLE in join.env


def command(usual: Command, join: JoinReply) -> Command:
    """The same, below the launcher that watches it."""
    if not is_one(join):
        return usual
    python, unbuffered, *words = usual.argv
    return usual._replace(argv=[python, unbuffered, str(_LAUNCH), *words])


def env(join: JoinReply, spool: str, output: str) -> dict[str, str]:
    """What the launcher needs to know of this node, besides what was asked."""
    if not is_one(join):
        return {}
    asked = json.loads(join.env[VARIABLE])
    return {VARIABLE: json.dumps({**asked, "report": f"{spool}/{_REPORT}", "output": output})}


def out(work: WorkDir, join: JoinReply) -> Path:
    """Where checkpoints are looked for: of a preflight, where there never are any."""
    return work.tmp / "no-checkpoints" if is_one(join) else work.root / "output-checkpoint"


def told(work: WorkDir, join: JoinReply, result: dict[str, Any], redact: Callable[[str], str]) -> dict[str, Any]:
    """How a node ended, with what its preflight has found."""
    if not is_one(join):
        return result
    report = _read(work.spool("sdk") / _REPORT, redact)
    if not report["complete"] and not result["told"] and not report["findings"] and result["exit_code"] != 0:
        report["findings"].append(_ended_otherwise(result))
    return {**result, "preflight": report}


def _read(path: Path, redact: Callable[[str], str]) -> dict[str, Any]:
    """What the script's process wrote, which may be anything: the server looks at it more closely."""
    report: Any = None
    with suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            report = json.loads(redact(file.read(_MOST).decode()))
    if not isinstance(report, dict) or not isinstance(report.get("findings"), list):
        report = {"findings": []}
    return {"complete": False, **report}


def _ended_otherwise(result: dict[str, Any]) -> dict[str, Any]:
    """By a signal, or before the script began."""
    from shoal.preflight.rules import RULES

    rule = "environment" if result["failed_rank"] is None else "killed"
    known = RULES[rule]
    message = result["reason"] or f"exit code {result['exit_code']}"
    return {"rule": rule, "severity": known.severity, "message": message, "why": known.why, "fix": known.fix}
