"""NetMind's swarm mode: `htp`, `hmp` and `HivemindTrainerCallback`, for scripts with their own hivemind DHT and Optimizer.

Importing this imports neither torch nor hivemind, but installs import hooks that adapt hivemind for older scripts (mending.py).
"""

from shoal.compat.netmind import _registered
from shoal.compat.swarm.import_hooks import install
from shoal.compat.swarm.monitor import MonitorPilot
from shoal.compat.swarm.trainer import TrainerPilot

__all__ = ["hmp", "htp"]

install()
htp = TrainerPilot()
hmp = MonitorPilot(_registered)


def __getattr__(name: str) -> object:
    if name == "HivemindTrainerCallback":
        from shoal.compat.swarm.callback import HivemindTrainerCallback

        return HivemindTrainerCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
