"""NetMind's `nmp` and related objects on Shoal's own API, so that scripts written for NetMind Power run unmodified.

Importing this imports neither torch nor transformers; the callbacks and the swarm mode are loaded when they are first used.
"""

from shoal.compat.netmind.checkpoint import NetmindCheckPoint
from shoal.compat.netmind.mock_arg import MockArg
from shoal.compat.netmind.nmp import NetmindPilot
from shoal.compat.netmind.registered import Registered

__all__ = [
    "MockArg",
    "NetmindCheckPoint",
    "NetmindDataloader",
    "NetmindDistributedModel",
    "NetmindModel",
    "NetmindOptimizer",
    "NetmindPilot",
    "NetmindScheduler",
    "nmp",
]

_registered = Registered()
nmp = NetmindPilot(_registered)
NetmindModel = NetmindDistributedModel = _registered.model
NetmindOptimizer = _registered.optimizer
NetmindScheduler = _registered.scheduler
NetmindDataloader = _registered.loader


def __getattr__(name: str) -> object:
    if name == "NetmindTrainerCallback":
        from shoal.compat.netmind.callback import NetmindTrainerCallback

        return NetmindTrainerCallback
    if name in ("HivemindTrainerCallback", "hmp", "htp"):
        from shoal.compat import swarm

        return getattr(swarm, name)
    if name == "TensorflowTrainerCallback":
        raise ImportError("TensorflowTrainerCallback is not available: Shoal trains PyTorch models only.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
