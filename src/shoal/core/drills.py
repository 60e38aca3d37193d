"""A fire drill, as the command, the workers and the agent speak of it: what is to break, at which step, in which attempt.

Standard library only: it travels in an environment variable, and workers read it before anything else is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

VARIABLE = "SHOAL_DRILL"
MARK = "[shoal] drill: "
"""Before each line of a copy's log that tells of the drill; JSON follows."""
ORDER = "x"
"""Kind of the spool record by which a worker asks its agent for what it cannot do itself."""
MOST_AWAY_S = 3600.0
"""An outage is never longer."""

What = Literal["kill", "sigterm", "slow", "server-down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    what: What
    at: int
    """After this step."""
    until: int | None = None
    """The last step that is slow; None for all that follow."""
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
        """As one types it."""
        if self.what == "server-down":
            return f"server-down {self.seconds:g}s@{self.at}"
        if self.what == "slow":
            end = "" if self.until is None else f"-{self.until}"
            return f"slow {self.target}:{self.factor:g}x@{self.at}{end}"
        return f"{self.what} {self.target}@{self.at}"


@dataclass(frozen=True, slots=True)
class Plan:
    stop_at: int
    faults: tuple[Fault, ...] = ()
    """In the order in which they happen."""

    @classmethod
    def of(cls, stop_at: int, faults: list[Fault]) -> Plan:
        return cls(stop_at, tuple(sorted(faults, key=lambda f: (f.at, f.ends_attempt))))

    @property
    def last_fault(self) -> int:
        return max((f.at for f in self.faults), default=0)

    def attempt_of(self, fault: Fault) -> int:
        """Each attempt but the last ends by a fault; so the attempt's number says which have been, however often a step is made."""
        before = self.faults[: self.faults.index(fault)]
        return 1 + sum(f.ends_attempt for f in before)

    def dump(self) -> str:
        return json.dumps({"stop_at": self.stop_at, "faults": [asdict(f) for f in self.faults]})

    @classmethod
    def load(cls, text: str) -> Plan:
        """ValueError, KeyError or TypeError where it is none."""
        told: Mapping[str, Any] = json.loads(text)
        return cls(int(told["stop_at"]), tuple(Fault(**fault) for fault in told["faults"]))
