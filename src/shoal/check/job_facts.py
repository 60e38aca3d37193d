"""Facts about a job that a check uses besides its code: size, arguments and datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.core.jobs import JobSpec

MOST_BYTES = 1 << 20
"""Maximum size of the code that is checked while a job is submitted: about one second of work."""
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    nodes: int = 1
    """Maximum number of nodes."""
    accels: int = 1
    args: tuple[str, ...] | None = None
    """Arguments of the script; None if unknown."""
    datasets: frozenset[str] | None = None
    """Names of the datasets below /input, and of the jobs whose outputs are there; None if unknown."""
    launched: bool = False
    """True if torchrun or a similar launcher starts the script and decides the number of workers."""

    @property
    def workers(self) -> int:
        return self.nodes * self.accels


def facts_of(spec: JobSpec, entry: Sequence[str]) -> tuple[str | None, JobFacts]:
    """Return the script of a job's entry (or None) and the known facts."""
    at = next((i for i, word in enumerate(entry) if word.endswith(".py")), None)
    asked = JobFacts(
        nodes=spec.max_nodes,
        accels=spec.accels,
        args=tuple(entry[at + 1 :]) if at is not None else None,
        datasets=frozenset(
            [*(name.partition("@")[0] for name in spec.datasets), *(one.at or one.job for one in spec.after)]
        ),
        launched=spec.launcher == "torchrun" or bool(entry and entry[0] in _LAUNCHERS),
    )
    return (entry[at] if at is not None else None), asked
