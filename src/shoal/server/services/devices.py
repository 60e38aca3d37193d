"""Kinds of slots a job may use on the pool as it is, and how the pool is described where a job could never run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from shoal.core.errors import CanNeverRun
from shoal.engines.base import Machine
from shoal.server.scheduler.decide import MachineState, largest_possible
from shoal.server.scheduler.kinds import Kinds
from shoal.server.scheduler.model import QueuedJob

_MOST_NAMED = 8


class Asked(Protocol):
    """Anything that asks for slots: a job, a quote."""

    @property
    def min_nodes(self) -> int: ...
    @property
    def accels(self) -> int: ...
    @property
    def device(self) -> str: ...


def usable_kinds(machines: Iterable[Machine], asked: Asked, exclude: Collection[str] = ()) -> frozenset[str]:
    """Return the kinds of slots the pool has that the job may use; empty if there are none."""
    states = [_state(m) for m in machines if m.slots and m.name not in exclude]
    job = QueuedJob(
        job_id="",
        priority=0,
        order=(0.0, ""),
        min_nodes=asked.min_nodes,
        max_nodes=asked.min_nodes,
        accels=asked.accels,
        device=asked.device,
    )
    return Kinds(states).allowed(job) & {m.kind for m in states}


def refuse_impossible(
    machines: Sequence[Machine], asked: Asked, *, exclude: Collection[str] = (), private: bool = False
) -> None:
    """Raise CanNeverRun unless these machines, all of them free, could run this on slots of one kind."""
    pool = [m for m in machines if m.name not in exclude]
    nodes, accels = largest_possible([_state(m) for m in pool], asked.accels, asked.device)
    if accels == asked.accels and nodes >= asked.min_nodes:
        return
    details = {"nodes": nodes, "accels": accels}
    has = "the pool without the excluded machines has" if exclude else "the pool has"
    total = sum(m.slots for m in pool)
    if not total:
        hint = "shoal up --slots auto" if private else "shoal pool add USER@HOST"
        raise CanNeverRun(f"No job can run here: {has} no slots.", hint=hint, details=details)
    if not nodes:
        raise CanNeverRun(
            f"No machine with {asked.device} slots; {has}: {describe(pool)}.",
            hint="--device any takes whichever slots are free; see: shoal machine list",
            details=details,
        )
    what = f"{len(pool)} machine{'s' if len(pool) != 1 else ''} with {total} slot{'s' if total != 1 else ''}"
    if len({m.kind for m in pool if m.slots}) > 1:
        what += f": {describe(pool)}. All slots of a job are of one kind"
    kind = "" if asked.device in ("auto", "any") else f"{asked.device} "
    given = f" --device {asked.device}" if kind else ""
    more = private and total < asked.min_nodes * asked.accels
    raise CanNeverRun(
        f"{asked.min_nodes} node(s) × {asked.accels} {kind}slot(s) can never run here: {has} {what}. "
        f"The largest that could: --nodes {nodes} --accels {accels}{given}.",
        hint=f"shoal up --slots {asked.min_nodes * asked.accels}" if more else "shoal machine list",
        details=details,
    )


def describe(machines: Sequence[Machine]) -> str:
    """`local (cpu, 4 slots), gpu1 (cuda, 8 slots, draining)`."""
    words = [_described(m) for m in machines[:_MOST_NAMED]]
    more = len(machines) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "")


def _described(machine: Machine) -> str:
    state = "" if machine.state == "up" else f", {machine.state}"
    return f"{machine.name} ({machine.kind}, {machine.slots} slot{'s' if machine.slots != 1 else ''}{state})"


def _state(machine: Machine) -> MachineState:
    return MachineState(name=machine.name, slots=machine.slots, kind=machine.kind)
