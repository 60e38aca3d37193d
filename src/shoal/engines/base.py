"""The interface of all engines; `shoal.testing.engines.EngineContract` checks that an engine keeps to it.

- `plan` is half of `start`: what it returns is exactly what `start` runs.
- `start` is idempotent per attempt; `cancel` is idempotent and leaves no process behind.
- Agents outlive the process that holds the engine; `adopt` finds them again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from shoal.agent.devices.device import Device
from shoal.core.agents import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine with its slots. A field that is None has the value of the server's own machine."""

    name: str
    kind: str
    """Kind of its slots: cpu, cuda, rocm or xpu."""
    slots: int
    state: str = "up"
    """State: up, draining (running jobs continue, nothing new starts) or lost."""
    problems: list[str] = field(default_factory=list)
    refuses: str = ""
    """Reason why nothing new starts on it for now, as "NAME is …" continues; empty: there is none."""
    address: str | None = None
    home: str | None = None
    """Shoal's directory on that machine, which contains nodes/ and cache/."""
    python: str | None = None
    """The runtime interpreter on that machine."""
    url: str | None = None
    """URL at which that machine reaches this server."""
    cores: int | None = None
    devices: tuple[int, ...] = ()
    """Number of the accelerator of each slot; if empty, slot N is accelerator N."""
    inventory: tuple[Device, ...] = ()
    """The accelerator of each slot, if they are known. A slot whose accelerator has a problem takes no new jobs."""
    gauges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """UUID → measured values of a device at the engine's last reading."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that an admin gave the machine; jobs can ask for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """All nodes of one attempt: started together or not at all."""

    attempt_id: str
    nodes: list[Launch]
    exclude: tuple[str, ...] = ()
    """Machines to avoid, for engines that choose the machines themselves."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The job's own options for the queue of a cluster; an engine uses those of its kind's `job_options`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that `start` runs on a machine, for people and tests to read. Contains no secret."""

    machine: str
    argv: list[str]


class AgentState(StrEnum):
    """State of an agent as its engine sees it."""

    WAITING = "waiting"
    """Waiting in the engine's own queue, not started yet."""
    ALIVE = "alive"
    GONE = "gone"
    """The agent ran on this engine and has ended."""
    UNKNOWN = "unknown"
    """This engine knows of no such agent."""


class Engine(ABC):
    """Starts, finds and ends the agents of attempts on its machines."""

    @abstractmethod
    def probe(self) -> list[str]:
        """Return the problems of this engine; an empty list if it is healthy."""

    def prepare(self) -> None:
        """Get ready after the engine was opened, in a few seconds at most; called at every start of the server."""
        return

    def check(self) -> list[str]:
        """Return all problems, checked now. Unlike `probe` it may take as long as a job takes to start."""
        return self.probe()

    @abstractmethod
    def capacity(self) -> list[Machine]:
        """Return the machines with all their slots, free or not; the server itself counts which are in use."""

    @abstractmethod
    def plan(self, gang: Gang) -> list[Command]:
        """Return the commands that `start` would run, one per node."""

    @abstractmethod
    def start(self, gang: Gang) -> None:
        """Start one agent per node. If one cannot be started, raise an error and leave none running."""

    @abstractmethod
    def status(self, attempt_id: str, node: int) -> AgentState: ...

    def waits(self, attempt_id: str) -> str | None:
        """Return why an attempt waits in the engine's own queue, for people; None if it does not."""
        return None

    def last_word(self, attempt_id: str, node: int) -> str | None:
        """Return the end reason that an agent wrote on its machine but could not report; None if there is none."""
        return None

    @abstractmethod
    def salvage(self, attempt_id: str, node: int) -> None:
        """Start the recovery of a dead agent: kill what it left running and deliver its unsent records. Returns at once."""

    @abstractmethod
    def cancel(self, attempt_id: str) -> None:
        """Kill every process of the attempt now. The server first requests a stop from the agents."""

    @abstractmethod
    def adopt(self) -> set[str]:
        """Return the ids of attempts that still have a running agent, after a restart of the server."""

    @abstractmethod
    def clean(self, attempt_id: str) -> None:
        """Remove the files of an ended attempt from the machines' disks."""

    def close(self) -> None:
        """Release the resources of this process; agents continue."""
        return
