"""Several engines as one: machines are theirs together, a gang may have nodes on all of them.

Engines come and go while the server runs. Who knows an attempt's node answers for it; one engine in trouble keeps the
others from nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from shoal.core.errors import NameTaken, NotFound, Refused, ShoalError
from shoal.engines.base import AgentState, Command, Engine, Gang, Machine

logger = logging.getLogger(__name__)


class Engines(Engine):
    def __init__(self, **engines: Engine):
        self._engines = dict(engines)
        self._drained: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def add(self, name: str, engine: Engine) -> None:
        with self._lock:
            if name in self._engines:
                raise NameTaken(f"There is an engine '{name}' already.")
            self._engines[name] = engine

    def remove(self, name: str) -> Engine:
        """Its agents are left as they are; from now on nobody here knows them."""
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
        """Start nothing new on a machine whose own engine does not keep such a state, or start there again."""
        with self._lock:
            self._drained = self._drained | {machine} if draining else self._drained - {machine}

    def capacity(self) -> list[Machine]:
        drained = self._drained
        return [
            replace(machine, state="draining") if machine.name in drained and machine.state == "up" else machine
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
        """By name; should two engines offer the same name, it is the first one's."""
        found: dict[str, tuple[Machine, Engine]] = {}
        for name, engine in self._all():
            for machine in engine.capacity():
                if machine.name in found:
                    logger.warning("engine %s offers a second machine '%s', which is left out", name, machine.name)
                else:
                    found[machine.name] = (machine, engine)
        return found

    def _parts(self, gang: Gang) -> list[tuple[Engine, Gang]]:
        """What each engine has to start, in the order of the nodes."""
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
