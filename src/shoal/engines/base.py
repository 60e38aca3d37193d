"""The treaty every engine keeps; `shoal.testing.engines.EngineContract` checks it.

- `plan` is half of `start`: what it returns is exactly what `start` runs.
- `start` is idempotent per attempt; `cancel` is idempotent and leaves no process behind.
- Agents outlive the process that holds the engine; `adopt` finds them again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.core.agents import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is None holds for the server's own machine."""

    name: str
    kind: str
    """cpu, cuda, rocm or xpu."""
    slots: int
    state: str = "up"
    """up, draining (what runs there goes on, nothing new starts) or lost."""
    problems: list[str] = field(default_factory=list)
    address: str | None = None
    home: str | None = None
    """Shoal's directory there, with nodes/ and cache/ in it."""
    python: str | None = None
    """The runtime interpreter there."""
    url: str | None = None
    """This server, as that machine sees it."""
    cores: int | None = None
    devices: tuple[int, ...] = ()
    """The accelerator behind each slot; empty: slot N is accelerator N."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """All nodes of one attempt: started together or not at all."""

    attempt_id: str
    nodes: list[Launch]
    exclude: tuple[str, ...] = ()
    """Machines it must not or had better not run on, for engines that choose by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What `start` will run on a machine, for people and tests to read. Holds no secret."""

    machine: str
    argv: list[str]


class AgentState(StrEnum):
    WAITING = "waiting"
    """In the queue of an engine that has one: not started yet."""
    ALIVE = "alive"
    GONE = "gone"
    """It ran on this engine and is no more."""
    UNKNOWN = "unknown"
    """This engine knows of no such agent."""


class Engine(ABC):
    @abstractmethod
    def probe(self) -> list[str]:
        """What is wrong with this engine; empty when healthy."""

    @abstractmethod
    def capacity(self) -> list[Machine]:
        """The machines and all their slots, free or not: the server itself counts what is in use."""

    @abstractmethod
    def plan(self, gang: Gang) -> list[Command]: ...

    @abstractmethod
    def start(self, gang: Gang) -> None:
        """Start one agent per node. Raises, with nothing left running, if any cannot be started."""

    @abstractmethod
    def status(self, attempt_id: str, node: int) -> AgentState: ...

    def waits(self, attempt_id: str) -> str | None:
        """Why its agents have not started yet, in words for people; None unless they wait in a queue of the engine's own."""
        return None

    def last_word(self, attempt_id: str, node: int) -> str | None:
        """Return why an agent that is gone has left, where it said so on its own machine only; None if that is not known."""
        return None

    @abstractmethod
    def salvage(self, attempt_id: str, node: int) -> None:
        """An agent is gone without a last word: end what it left running and deliver what it had to say. Returns at once."""

    @abstractmethod
    def cancel(self, attempt_id: str) -> None:
        """Kill every process of the attempt now; the server asks agents nicely first."""

    @abstractmethod
    def adopt(self) -> set[str]:
        """Ids of the attempts that still have an agent alive, after our own restart."""

    @abstractmethod
    def clean(self, attempt_id: str) -> None:
        """Remove what an ended attempt left on the machines' disks."""

    def close(self) -> None:
        """Let go of what this process holds for it; agents stay."""
        return
