"""A server with a second machine: `python two_machines.py --home HOME …`, as `python -m shoal.server`.

The second, 'far', is a directory and the processes that work in it. What tests do to it, it does not notice by itself:
a file `cut` in its directory takes its cable away (its agents run on, nobody here reaches them), `lost` tells its engine.
"""

import sys
from dataclasses import replace
from pathlib import Path

from shoal.engines.base import AgentState
from shoal.engines.local import LocalEngine
from shoal.engines.many import Engines
from shoal.server import __main__ as program
from shoal.server import run as server

FAR = "far"
SLOTS = 2


class FarEngine(LocalEngine):
    """Agents on a machine that may be out of reach."""

    def __init__(self, home: Path):
        super().__init__(home / "nodes", machine=FAR, slots=SLOTS)
        self._cut, self._lost = home / "cut", home / "lost"

    def capacity(self):
        state = "lost" if self._lost.exists() else "up"
        return [replace(machine, state=state) for machine in super().capacity()]

    def start(self, gang):
        if self._cut.exists():
            raise OSError("no route to host")
        super().start(gang)

    def status(self, attempt_id, node):
        state = super().status(attempt_id, node)
        if state is AgentState.UNKNOWN:
            return state
        return AgentState.GONE if self._lost.exists() else AgentState.ALIVE if self._cut.exists() else state

    def salvage(self, attempt_id, node):
        if not self._cut.exists():
            super().salvage(attempt_id, node)

    def cancel(self, attempt_id):
        if not self._cut.exists():
            super().cancel(attempt_id)


def _open_engine(layout, settings):
    near = LocalEngine(layout.nodes_dir, slots=SLOTS)
    return Engines(local=near, far=FarEngine(layout.root / FAR))


if __name__ == "__main__":
    server._open_engine = _open_engine
    sys.exit(program.main())
