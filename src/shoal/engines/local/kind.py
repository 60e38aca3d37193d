"""The engine for the server's own machine, as the server opens it."""

from __future__ import annotations

import sys

from shoal.engines.base import Engine
from shoal.engines.kinds import EngineHost, OwnMachineKind
from shoal.engines.local.engine import LocalEngine
from shoal.engines.local.prefork import PreforkParent


class LocalKind(OwnMachineKind):
    """Agents as processes of the server's own machine."""

    name, title = "local", "local"

    def open(self, host: EngineHost) -> Engine:
        env, log = dict(host.agent_env), host.layout.server_dir / "prefork.log"
        prefork = PreforkParent(sys.executable, env, log) if host.settings.warm else None
        return LocalEngine(host.layout.nodes_dir, slots=host.settings.slots, agent_env=env, prefork=prefork)
