"""Plans of fire drills: which faults to inject into a copy of a job, at which step and in which attempt.

The command, the workers and the agent share them. Standard library only: a plan travels in an environment variable, and workers
read it before anything else is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

VARIABLE = "SHOAL_DRILL"
MARK = "[shoal] drill: "
"""Start of each log line about the drill; JSON follows."""
MOST_AWAY_S = 3600.0
"""Longest outage of the server that a drill simulates, in seconds."""

What = Literal["kill", "sigterm", "slow", "server-down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault to inject."""

    what: What
    at: int
    """Step after which the fault happens."""
    until: int | None = None
    """Last slow step; None: all following steps are slow."""
    rank: int | None = None
    node: int | None = None
    factor: float = 1.0
    seconds: float = 0.0

    @property
    def ends_attempt(self) -> bool:
        return self.what in ("kill", "sigterm")

    @property
    def target(self) -> str:
        if self.what == "server-down":
            return "server"
        return f"node{self.node}" if self.rank is None else f"rank{self.rank}"

    @property
    def text(self) -> str:
        """Return the fault as it is typed on the command line."""
        if self.what == "server-down":
            return f"server-down {self.seconds:g}s@{self.at}"
        if self.what == "slow":
            end = "" if self.until is None else f"-{self.until}"
            return f"slow {self.target}:{self.factor:g}x@{self.at}{end}"
        return f"{self.what} {self.target}@{self.at}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All faults of a drill, and the step at which the copy of the job stops."""

    stop_at: int
    faults: tuple[Fault, ...] = ()
    """Faults in the order in which they happen."""

    @classmethod
    def of(cls, stop_at: int, faults: list[Fault]) -> Plan:
        return cls(stop_at, tuple(sorted(faults, key=lambda f: (f.at, f.ends_attempt))))

    @property
    def last_fault(self) -> int:
        return max((f.at for f in self.faults), default=0)

    def attempt_of(self, fault: Fault) -> int:
        """Return the number of the attempt in which a fault happens.

        Every attempt but the last is ended by a fault. So the number of an attempt says which faults have already happened,
        even if steps are repeated.
        """
        before = self.faults[: self.faults.index(fault)]
        return 1 + sum(f.ends_attempt for f in before)

    def dump(self) -> str:
        return json.dumps({"stop_at": self.stop_at, "faults": [asdict(f) for f in self.faults]})

    @classmethod
    def load(cls, text: str) -> Plan:
        """Read a plan from its JSON; raise ValueError, KeyError or TypeError if the text is not a plan."""
        plan: Mapping[str, Any] = json.loads(text)
        return cls(int(plan["stop_at"]), tuple(Fault(**fault) for fault in plan["faults"]))
