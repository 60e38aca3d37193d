"""What is known of the job besides its code."""

from __future__ import annotations

from dataclasses import dataclass


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
