"""Directory of a local run: the SDK's spool, checkpoints, logs, and run.json with the facts of the run."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import NameTaken, NotFound

RUNS = "shoal-runs"
FACTS = "run.json"
_TIME = "%Y-%m-%dT%H:%M:%SZ"


class RunDir:
    """Run directory. Layout: run.json, spool/, checkpoints/, logs/; tmp/ while the run is active."""

    def __init__(self, root: Path):
        self.root = root.absolute()

    @classmethod
    def create(cls, name: str, entry: Sequence[str], world_size: int, root: Path | None = None) -> RunDir:
        """Create a run directory at `root`, or a new one below ./shoal-runs."""
        from shoal import __version__

        run = cls(root or Path(RUNS) / f"{_safe(name)}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
        if run.facts:
            raise NameTaken(
                f"{run.display_path} already contains a run.", hint=f"Resume it: --resume --dir {run.display_path}"
            )
        for folder in (run.spool, run.checkpoints, run.logs):
            folder.mkdir(parents=True, exist_ok=True)
        run.facts = {
            "id": secrets.token_hex(12),
            "name": name,
            "created": _now(),
            "argv": list(entry),
            "world_size": world_size,
            "shoal": __version__,
            "cwd": str(Path.cwd()),
            "attempts": [],
        }
        return run

    @classmethod
    def find(cls, root: Path | None) -> RunDir:
        """Return the given run directory, or the newest below ./shoal-runs."""
        if root is not None:
            run = cls(root)
            if not run.facts:
                raise NotFound(f"{root} is not a run directory: it has no {FACTS}.")
            return run
        found = [cls(path.parent) for path in Path(RUNS).glob(f"*/{FACTS}")]
        if not found:
            raise NotFound(f"There is no run in ./{RUNS} to resume.", hint="Name one: --resume --dir DIR")
        return max(found, key=lambda run: (str(run.facts.get("created")), (run.root / FACTS).stat().st_mtime_ns))

    @property
    def display_path(self) -> str:
        """Path for messages: relative if it is below the current folder, else absolute."""
        return os.path.relpath(self.root) if self.root.is_relative_to(Path.cwd()) else str(self.root)

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def facts(self) -> dict[str, Any]:
        """Content of run.json; empty if it is missing or damaged."""
        try:
            found = json.loads((self.root / FACTS).read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @facts.setter
    def facts(self, value: dict[str, Any]) -> None:
        aside = self.root / f".{FACTS}.tmp"
        aside.write_text(json.dumps(value, indent=1) + "\n")
        aside.replace(self.root / FACTS)

    def begin(self, resumed_from: Path | None) -> int:
        """Record a new attempt in run.json and return its number."""
        facts = self.facts
        attempts = facts.setdefault("attempts", [])
        attempts.append({"started": _now(), "resumed_from": resumed_from.name if resumed_from else None})
        self.facts = facts
        return len(attempts)

    def end(self, exit_code: int, reason: str | None) -> None:
        facts = self.facts
        facts["attempts"][-1] |= {"ended": _now(), "exit_code": exit_code, "reason": reason}
        self.facts = facts

    def newest_checkpoint(self) -> Path | None:
        """Return the newest complete checkpoint, or None."""
        from shoal.agent.data.bug_capsules import holds_capsules
        from shoal.agent.data.completeness import is_half_made_name, problem

        try:
            folders = [p for p in self.checkpoints.iterdir() if p.is_dir() and not is_half_made_name(p.name)]
        except FileNotFoundError:
            return None
        folders = [p for p in folders if not holds_capsules(p)]
        for folder in sorted(folders, key=lambda p: (p.stat().st_mtime_ns, p.name), reverse=True):
            files = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
            if files and problem(folder, files) is None:
                return folder
        return None

    def newest_capsule(self) -> Path | None:
        """Return the newest capsule of a failed step of the last attempt, or None."""
        from shoal.agent.data.bug_capsules import FOLDER, capsules_in

        attempts = self.facts.get("attempts") or [{}]
        started = str(attempts[-1].get("started") or "")
        found = [(p.stat().st_mtime, p) for p in capsules_in(self.checkpoints / FOLDER)]
        fresh = [one for one in found if time.strftime(_TIME, time.gmtime(one[0])) >= started]
        return max(fresh)[1] if fresh else None


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:63] or "run"


def _now() -> str:
    return time.strftime(_TIME, time.gmtime())
