"""What the parts of a running server share. One per process, reached from routes as `Ctx`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from shoal.core.loops import Loops
from shoal.core.settings import Layout, ServerSettings
from shoal.engines.many import Engines
from shoal.server.attached import Attached
from shoal.server.db import Database
from shoal.server.gate import Gate
from shoal.server.gateway import Gateway
from shoal.server.guards import Guards
from shoal.server.jupyter import Labs
from shoal.server.live import Live
from shoal.server.mail import Mailer
from shoal.server.meter import Meter
from shoal.server.neighbours import Givers
from shoal.server.orders import Orders
from shoal.server.pool import Pool
from shoal.server.scheduler.memory import QueueMemory
from shoal.server.services.lease_keys import Keyring
from shoal.server.services.vault import Vault
from shoal.server.stalls import Stalls
from shoal.server.swarm_keepers import Keepers
from shoal.store.blobstore import BlobStore


@dataclass(slots=True, kw_only=True)
class Context:
    layout: Layout
    settings: ServerSettings
    private: bool
    """True for the server a person's own CLI started: one owner, loopback only."""
    db: Database
    store: BlobStore
    vault: Vault
    engine: Engines
    live: Live
    loops: Loops = field(default_factory=Loops)
    instance: str = ""
    """Id of the data directory, which a copy of it does not share; empty where agents are not asked whom they mean."""
    gate: Gate = field(default_factory=Gate)
    guards: Guards = field(default_factory=Guards)
    queue: QueueMemory = field(default_factory=QueueMemory)
    meter: Meter = field(default_factory=Meter)
    pool: Pool = field(default_factory=Pool)
    orders: Orders = field(default_factory=Orders)
    stalls: Stalls = field(default_factory=Stalls)
    gateway: Gateway = field(default_factory=Gateway)
    attached: Attached = field(default_factory=Attached)
    labs: Labs = field(default_factory=Labs)
    givers: Givers = field(default_factory=Givers)
    keepers: Keepers = field(default_factory=Keepers)
    ssh_keys: Keyring = field(init=False)
    mail: Mailer = field(init=False)

    def __post_init__(self) -> None:
        self.ssh_keys = Keyring(self.layout.server_dir)
        self.mail = Mailer(self.settings.smtp_url, self.settings.mail_from, loops=self.loops)
        self.loops.watch("database", self.db.problem)
        self.loops.watch("disk", self.db.disk_problem)


async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(_context)]
