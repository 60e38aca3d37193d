"""What is known of the job besides its code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.core.jobs import JobSpec

MOST_BYTES = 1 << 20
"""Of code to look at while somebody waits: about a second's work."""
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    nodes: int = 1
    """At most."""
    accels: int = 1
    args: tuple[str, ...] | None = None
    """What the script is given; None: not known."""
    datasets: frozenset[str] | None = None
    """Names below /input; None: not known."""
    launched: bool = False
    """Started by torchrun or the like, which may do as it pleases with the workers."""

    @property
    def workers(self) -> int:
        return self.nodes * self.accels


def asked_by(spec: JobSpec, entry: Sequence[str]) -> tuple[str | None, Asked]:
    """The script among the words, and what is known besides."""
    at = next((i for i, word in enumerate(entry) if word.endswith(".py")), None)
    asked = Asked(
        nodes=spec.max_nodes,
        accels=spec.accels,
        args=tuple(entry[at + 1 :]) if at is not None else None,
        datasets=frozenset(name.partition("@")[0] for name in spec.datasets),
        launched=spec.launcher == "torchrun" or bool(entry and entry[0] in _LAUNCHERS),
    )
    return (entry[at] if at is not None else None), asked
