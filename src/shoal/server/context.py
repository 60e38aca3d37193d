"""Shared state of a running server. One per process; routes receive it as `Ctx`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from shoal.core.background_loops import Loops
from shoal.core.settings import Layout, ServerSettings
from shoal.core.steady_clock import SteadyClock
from shoal.engines.many import Engines
from shoal.server.artifacts.gc_lock import GcLock
from shoal.server.artifacts.peer_index import PeerIndex
from shoal.server.artifacts.upload_activity import UploadActivity
from shoal.server.billing.usage_clock import UsageClock
from shoal.server.db import Database
from shoal.server.edge.certificates import Certificate
from shoal.server.jobs.agent_commands import AgentCommands
from shoal.server.jobs.attach_sessions import Attached
from shoal.server.jobs.feeds import Feeds
from shoal.server.jobs.stalls import Stalls
from shoal.server.jobs.start_barrier import StartBarrier
from shoal.server.jupyter.ports import Labs
from shoal.server.leases.gateway import Gateway
from shoal.server.leases.keys import Keyring
from shoal.server.mail import Mailer
from shoal.server.notifications import Notifications
from shoal.server.people.guards import Guards
from shoal.server.people.oidc.protocol import Issuers
from shoal.server.people.oidc.services import Services
from shoal.server.people.vault import Vault
from shoal.server.pool.cluster import Pool
from shoal.server.pool.device_gauges import DeviceGauges
from shoal.server.scheduler.state import QueueMemory
from shoal.server.swarms.coordinators import Coordinators
from shoal.store.blobstore import BlobStore


@dataclass(slots=True, kw_only=True)
class Context:
    """Everything that the parts of a server share: settings, database, store, engines and in-memory state."""

    layout: Layout
    settings: ServerSettings
    private: bool
    """True for the server a person's own CLI started: one owner, loopback only."""
    db: Database
    store: BlobStore
    vault: Vault
    engine: Engines
    live: Notifications
    loops: Loops = field(default_factory=Loops)
    instance: str = ""
    """Id of the data directory; a copy gets another one. If it is empty, agents are not asked which server they mean."""
    gc_lock: GcLock = field(default_factory=GcLock)
    guards: Guards = field(default_factory=Guards)
    queue: QueueMemory = field(default_factory=QueueMemory)
    usage_clock: UsageClock = field(default_factory=UsageClock)
    tls: Certificate | None = None
    """Certificate of the server's main listener; None for plain http."""
    public_url: str = ""
    """URL for people on other machines; empty until the server listens."""
    pool: Pool = field(default_factory=Pool)
    starts: StartBarrier = field(default_factory=StartBarrier)
    gateway: Gateway = field(default_factory=Gateway)
    feeds: Feeds = field(default_factory=Feeds)
    attached: Attached = field(default_factory=Attached)
    labs: Labs = field(default_factory=Labs)
    uploads: UploadActivity = field(default_factory=UploadActivity)
    givers: PeerIndex = field(default_factory=PeerIndex)
    gauges: DeviceGauges = field(default_factory=DeviceGauges)
    coordinators: Coordinators = field(default_factory=Coordinators)
    clock: SteadyClock = field(default_factory=SteadyClock)
    """The clock of `utcnow` in a running server."""
    commands: AgentCommands = field(init=False)
    stalls: Stalls = field(init=False)
    ssh_keys: Keyring = field(init=False)
    mail: Mailer = field(init=False)
    sign_in_services: Services = field(init=False)
    issuers: Issuers = field(default_factory=Issuers)

    def __post_init__(self) -> None:
        live = self.live
        self.commands, self.stalls = AgentCommands(lambda: live.lag.awake_s()), Stalls(lambda: live.lag.awake_s())
        self.ssh_keys = Keyring(self.layout.server_dir)
        self.mail = Mailer(self.settings.smtp_url, self.settings.mail_from, loops=self.loops)
        self.sign_in_services = Services(self.layout.sign_in_services)
        self.loops.watch("database", self.db.problem)
        self.loops.watch("disk", self.db.disk_problem)


async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(_context)]
