"""The local engine: agents are processes of the server's own machine."""

from shoal.engines.local.engine import MACHINE, LocalEngine

__all__ = ["MACHINE", "LocalEngine"]
