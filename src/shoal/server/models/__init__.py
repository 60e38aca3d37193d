"""Tables. Each room's tables in a file of their own; importing this loads them all."""

from shoal.server.models import (
    artifacts,
    bugs,
    engines,
    jobs,
    leases,
    ledger,
    metrics,
    people,
    pool,
    server,
    snapshots,
    swarm,
    sweeps,
)
from shoal.server.models.base import Base

__all__ = [
    "Base",
    "artifacts",
    "bugs",
    "engines",
    "jobs",
    "leases",
    "ledger",
    "metrics",
    "people",
    "pool",
    "server",
    "snapshots",
    "swarm",
    "sweeps",
]
