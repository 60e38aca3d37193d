"""Combines several engines into one: it offers all their machines, and an attempt may have nodes on several of them.

Engines can be added and removed while the server runs. The engine that knows a node answers for it. An engine with problems
does not affect the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from shoal.core.errors import NameTaken, NotFound, Refused, ShoalError
from shoal.engines.base import AgentState, Command, Engine, Gang, Machine

logger = logging.getLogger(__name__)


class Engines(Engine):
    """All engines of a server behind the interface of one."""

    def __init__(self, **engines: Engine):
        self._engines = dict(engines)
        self._drained: frozenset[str] = frozenset()
        self._drained_devices: Mapping[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    def add(self, name: str, engine: Engine) -> None:
        with self._lock:
            if name in self._engines:
                raise NameTaken(f"There is an engine '{name}' already.")
            self._engines[name] = engine

    def remove(self, name: str) -> Engine:
        """Remove an engine and return it. Its agents continue, but are unknown here from now on."""
        with self._lock:
            if name not in self._engines:
                raise NotFound(f"There is no engine '{name}'.")
            return self._engines.pop(name)

    def get(self, name: str) -> Engine | None:
        with self._lock:
            return self._engines.get(name)

    @property
    def names(self) -> list[str]:
        with self._lock:
            return list(self._engines)

    def probe(self) -> list[str]:
        several = len(self.names) > 1
        return [f"{name}: {problem}" if several else problem for name, e in self._all() for problem in e.probe()]

    def drain(self, machine: str, *, draining: bool) -> None:
        """Set whether a machine is draining, for engines that do not store that state themselves."""
        with self._lock:
            self._drained = self._drained | {machine} if draining else self._drained - {machine}

    def set_drained_devices(self, reasons: Mapping[tuple[str, str], str]) -> None:
        """Set the devices that take no new jobs: (machine, identity of the device) → reason."""
        self._drained_devices = dict(reasons)

    def capacity(self) -> list[Machine]:
        drained, devices = self._drained, self._drained_devices
        return [
            _without(replace(machine, state="draining"), devices)
            if machine.name in drained and machine.state == "up"
            else _without(machine, devices)
            for machine, _ in self._machines().values()
        ]

    def plan(self, gang: Gang) -> list[Command]:
        commands = {
            launch.node: command
            for engine, part in self._parts(gang)
            for launch, command in zip(part.nodes, engine.plan(part), strict=True)
        }
        return [commands[launch.node] for launch in gang.nodes]

    def start(self, gang: Gang) -> None:
        begun: list[Engine] = []
        try:
            for engine, part in self._parts(gang):
                begun.append(engine)
                engine.start(part)
        except BaseException:
            for engine in begun:
                _try(engine.cancel, gang.attempt_id)
            raise

    def status(self, attempt_id: str, node: int) -> AgentState:
        for _, engine in self._all():
            state = engine.status(attempt_id, node)
            if state is not AgentState.UNKNOWN:
                return state
        return AgentState.UNKNOWN

    def waits(self, attempt_id: str) -> str | None:
        return next((why for _, engine in self._all() if (why := engine.waits(attempt_id))), None)

    def last_word(self, attempt_id: str, node: int) -> str | None:
        return next((word for _, engine in self._all() if (word := engine.last_word(attempt_id, node))), None)

    def salvage(self, attempt_id: str, node: int) -> None:
        for _, engine in self._all():
            if engine.status(attempt_id, node) is not AgentState.UNKNOWN:
                engine.salvage(attempt_id, node)

    def cancel(self, attempt_id: str) -> None:
        for _, engine in self._all():
            _try(engine.cancel, attempt_id)

    def adopt(self) -> set[str]:
        return {attempt_id for _, engine in self._all() for attempt_id in engine.adopt()}

    def clean(self, attempt_id: str) -> None:
        for _, engine in self._all():
            _try(engine.clean, attempt_id)

    def _all(self) -> list[tuple[str, Engine]]:
        with self._lock:
            return list(self._engines.items())

    def _machines(self) -> dict[str, tuple[Machine, Engine]]:
        """Return all machines by name; if two engines offer the same name, the first engine's counts."""
        found: dict[str, tuple[Machine, Engine]] = {}
        for name, engine in self._all():
            for machine in engine.capacity():
                if machine.name in found:
                    logger.warning("engine %s offers a second machine '%s', which is ignored", name, machine.name)
                else:
                    found[machine.name] = (machine, engine)
        return found

    def _parts(self, gang: Gang) -> list[tuple[Engine, Gang]]:
        """Return the part of a gang that each engine has to start, in the order of the nodes."""
        machines = self._machines()
        parts: dict[int, tuple[Engine, Gang]] = {}
        for launch in gang.nodes:
            if launch.machine not in machines:
                raise Refused(f"There is no machine '{launch.machine}' now.", hint="shoal machine list")
            engine = machines[launch.machine][1]
            _, part = parts.setdefault(id(engine), (engine, replace(gang, nodes=[])))
            part.nodes.append(launch)
        return list(parts.values())


def _try(action: Callable[[str], None], attempt_id: str) -> None:
    try:
        action(attempt_id)
    except (OSError, ShoalError) as error:
        logger.warning("attempt %s: %s", attempt_id, error)


def _without(machine: Machine, drained: Mapping[tuple[str, str], str]) -> Machine:
    """Return the machine with its drained devices marked as unusable."""
    if not drained or not machine.inventory:
        return machine
    marked = tuple(
        replace(device, problem=f"drained: {why}")
        if not device.problem and (why := drained.get((machine.name, device.identity)))
        else device
        for device in machine.inventory
    )
    return replace(machine, inventory=marked)
