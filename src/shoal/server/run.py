"""Start and stop of a server process: lock, open, listen, announce; on SIGTERM the same in reverse."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp

from shoal.core.background_loops import run_all
from shoal.core.durable import watch_flushes
from shoal.core.errors import MissingExtra, Refused, ShoalError, StorageFailing
from shoal.core.instance import Instance, mark_copy_handled
from shoal.core.lag import Lag
from shoal.core.schema import timed_by
from shoal.core.settings import Layout, ServerSettings
from shoal.core.steady_clock import SteadyClock
from shoal.engines.kinds import EngineHost, own_machine_kind
from shoal.engines.many import Engines
from shoal.server import copied_data, start_record, timekeeping
from shoal.server.app import create_app
from shoal.server.artifacts.imports.service import resume_imports, stop_imports
from shoal.server.artifacts.store_probe import StoreProbe
from shoal.server.audit import settings_log
from shoal.server.backup import upgrades
from shoal.server.backup.schedule import BackupLoop
from shoal.server.billing import ledger
from shoal.server.context import Context
from shoal.server.db import Database
from shoal.server.disk_reserve import Reserve
from shoal.server.edge import connections, exposure
from shoal.server.edge.certificates import Certificate
from shoal.server.edge.listener import ListenerThread, Server, listen
from shoal.server.edge.proxies import BehindProxy
from shoal.server.edge.public_address import public_host
from shoal.server.engines import service as engines
from shoal.server.git.service import clean_up
from shoal.server.jobs import sandboxes
from shoal.server.jobs.disk_watch import DiskWatch
from shoal.server.leases.clock import LeaseClock
from shoal.server.migrations import upgrade
from shoal.server.notices.loop import NoticeLoop
from shoal.server.notifications import Notifications
from shoal.server.people.accounts import ensure_owner
from shoal.server.people.secret_key import open_vault
from shoal.server.pool import device_drains, own_machine
from shoal.server.scheduler.loop import Scheduler
from shoal.server.swarms.watch import SwarmWatch
from shoal.server.sweeper.loop import Sweeper
from shoal.server.write_patience import WritePatience
from shoal.store.blobstore import BlobStore
from shoal.store.local import LocalStore

logger = logging.getLogger(__name__)
_ANY_INSTANCE = Instance("")
_LOCK_TRIES, _LOCK_PAUSE_S = 20, 0.05
_END_WITHIN_S = 15.0
_CERTIFICATE_TICKS = 600
"""Ticks of the event loop (ten a second) between two looks at the certificate's files."""


def run(layout: Layout, settings: ServerSettings, *, take_over: bool = False, new_secret_key: bool = False) -> int:
    """Serve until SIGTERM.

    `take_over`: this directory replaces the one it was copied from. `new_secret_key`: replace a lost secret.key.
    """
    logging.basicConfig(
        level=os.environ.get("SHOAL_LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    exposure.check(settings)
    layout.close()
    reserve = Reserve(layout.reserve, settings.disk_reserve_mb << 20)
    clock = SteadyClock()
    with (
        _sole_server(layout),
        timed_by(clock.now_s),
        start_record.announced(layout, take_over=take_over) as word,
        _reserving(reserve),
        _listening(layout, settings) as ways,
    ):
        timekeeping.resume(layout, clock)
        context = open_context(
            layout, settings, word.instance, word.doing, new_secret_key=new_secret_key, reserve=reserve
        )
        context.tls, context.public_url = ways.tls, ways.public
        word.doing("finding running jobs")
        scheduler, sweeper, swarms = Scheduler(context, ways.agents), Sweeper(context), SwarmWatch(context, ways.agents)
        app = WritePatience(create_app(context), settings.busy_after_s)
        context.pool.open(context, app)
        context.gateway.open(context)
        trusted = exposure.proxies(settings)
        connections.STRANGERS.exempt = trusted
        server = _Server(
            BehindProxy(app, trusted, only=bool(settings.behind_proxy)) if trusted else app,
            ways.tls,
            context.live.lag,
            on_ready=lambda: word.ready(ways.local, agents=ways.agents, public=ways.public),
            on_exit=context.live.close,
        )
        inner = ListenerThread(app, ways.inner, name="local listener") if ways.inner else None
        if inner is not None:
            context.loops.watch("local listener", inner.problem)
        adopted = context.engine.adopt()
        logger.info("serving %s at %s; %d attempts adopted", layout.root, ways.public, len(adopted))
        scheduler.start()
        sweeper.start()
        swarms.start()
        leases = LeaseClock(context)
        leases.start()
        timekeeper = timekeeping.Timekeeper(context, clock)
        timekeeper.start()
        backups = BackupLoop(context)
        backups.start()
        notices = NoticeLoop(context, ways.public)
        notices.start()
        store_probe, disk_watch = StoreProbe(context), DiskWatch(context)
        store_probe.start()
        disk_watch.start()
        resume_imports(context)
        # uvicorn handles these and then raises them again, which must not end the process before everything is closed.
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: None)
        # All objects of now live as long as the server: scanning them for garbage would take a third of the time for metrics.
        gc.freeze()
        gc.enable()
        _end_when_the_disk_fails(layout, context.db, server)
        try:
            server.run(sockets=[ways.main])
        finally:
            with suppress(StorageFailing):  # some parts write when they end, which a failing disk refuses
                run_all(
                    [
                        context.live.close,
                        lambda: _end_listener(inner),
                        context.labs.close,
                        context.gateway.close,
                        leases.stop,
                        backups.stop,
                        notices.stop,
                        store_probe.stop,
                        disk_watch.stop,
                        timekeeper.stop,
                        context.mail.close,
                        context.pool.close,
                        scheduler.stop,
                        sweeper.stop,
                        swarms.stop,
                        lambda: stop_imports(context),
                        context.db.close,
                    ]
                )
    return os.EX_IOERR if context.db.distrusted else 0


def _end_listener(listener: ListenerThread | None) -> None:
    if listener is not None:
        listener.request_end()
        listener.join()


def _end_when_the_disk_fails(layout: Layout, db: Database, server: Server) -> None:
    """End this process with exit code 74 once a flush fails on the disk of the data directory; by force if that takes long."""

    def end(reason: str) -> None:
        server.should_exit = True
        force = threading.Timer(_END_WITHIN_S, os._exit, (os.EX_IOERR,))
        force.daemon = True
        force.start()

    db.on_distrust = end
    watch_flushes(layout.root, db.distrust)
    if db.distrusted:  # since before these two lines
        end(db.distrusted)


def open_context(
    layout: Layout,
    settings: ServerSettings,
    instance: Instance = _ANY_INSTANCE,
    doing: Callable[[str], None] = lambda text: None,
    *,
    new_secret_key: bool = False,
    reserve: Reserve | None = None,
) -> Context:
    doing("opening the database")
    upgrades.copy_before(layout, doing)
    db = Database(layout.database)
    try:
        upgrade(db.writer, doing=doing)
        upgrades.remember_version(db)
        doing("opening secrets, store and engines")
        vault = open_vault(layout, db, new_key=new_secret_key)
    except BaseException:
        db.close()
        raise
    private = exposure.is_private(settings)
    sandboxes.check(settings, private=private)
    context = Context(
        layout=layout,
        settings=settings,
        private=private,
        db=db,
        store=_open_store(layout, settings),
        vault=vault,
        engine=_open_engine(layout, settings),
        live=Notifications(),
        instance=instance.id,
    )
    ensure_owner(context)
    settings_log.record_at_start(context)
    engines.open_all(context)
    own_machine.restore_drained(context)
    device_drains.restore(context)
    ledger.begin(context)
    if instance.copy_of:
        copied_data.disown(context)
        mark_copy_handled(layout, instance)
    clean_up(context)
    db.reserve = reserve
    return context


def _open_engine(layout: Layout, settings: ServerSettings) -> Engines:
    kind = own_machine_kind()
    host = EngineHost(layout=layout, settings=settings, agent_env=engines.agent_env(settings))
    return Engines(**{kind.name: kind.open(host)})


def _open_store(layout: Layout, settings: ServerSettings) -> BlobStore:
    if not settings.store:
        return LocalStore(layout.store_dir)
    try:
        from shoal.store.s3 import S3Store
    except ImportError:
        raise MissingExtra(
            "A store on S3 needs a package that is not installed.", hint="pip install 'shoal-train[s3]'"
        ) from None
    return S3Store(settings.store, index_path=layout.server_dir / "s3-index.db")


class _Server(Server):
    def __init__(
        self,
        app: ASGIApp,
        tls: Certificate | None,
        lag: Lag,
        *,
        on_ready: Callable[[], None],
        on_exit: Callable[[], None],
    ):
        super().__init__(app, tls.context if tls else None, close_s=5)
        self._certificate, self._lag, self._on_ready, self._on_exit = tls, lag, on_ready, on_exit

    async def on_tick(self, counter: int) -> bool:
        self._lag.tick()
        if self._certificate is not None and counter % _CERTIFICATE_TICKS == 0:
            self._refresh_certificate(self._certificate)
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_exit()  # ends the streams of followers, which would otherwise delay the shutdown
        await super().shutdown(sockets)

    def _refresh_certificate(self, certificate: Certificate) -> None:
        try:
            if certificate.refresh():
                logger.info("the TLS certificate was replaced; new connections use it")
        except (OSError, ShoalError, ssl.SSLError) as error:
            logger.error("the new TLS certificate cannot be used, the old one stays: %s", error)


@contextmanager
def _sole_server(layout: Layout) -> Iterator[None]:
    """Hold the lock of the data directory; the kernel releases it when the process ends, however it ends."""
    with layout.server_lock.open("a") as file:
        # Commands that check the lock hold a shared one for an instant, so a single refusal proves nothing.
        for pause_s in (*[_LOCK_PAUSE_S] * _LOCK_TRIES, None):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if pause_s is None:
                    raise Refused(f"A server already runs on {layout.root}.", hint="shoal server status") from None
                time.sleep(pause_s)
        yield


@contextmanager
def _reserving(reserve: Reserve) -> Iterator[None]:
    """Open the disk reserve before anything else is written: on a full disk the rest of the start needs its space."""
    reserve.open()
    yield


@dataclass(frozen=True, slots=True, kw_only=True)
class _Addresses:
    """The ways to a server: its sockets and URLs."""

    main: socket.socket
    public: str
    """URL for people."""
    local: str
    """URL for commands on this machine. It is plain http on loopback, where no certificate is needed."""
    agents: str
    """URL for agents on this machine."""
    inner: socket.socket | None = None
    """Loopback socket of a shared server for its own machine, so that a flood from outside does not delay heartbeats."""
    tls: Certificate | None = None


@contextmanager
def _listening(layout: Layout, settings: ServerSettings) -> Iterator[_Addresses]:
    """Yield the listening sockets and their URLs.

    Without a configured port the last one is tried first, for agents and browsers.
    """
    tls = Certificate(layout, settings) if settings.tls_cert else None
    with ExitStack() as sockets:

        def opened(host: str, memory: str, port: int = 0) -> tuple[socket.socket, int]:
            last = layout.server_dir / memory
            try:
                listener = listen(host, *([port] if port else [_read_port(last), 0]))
            except OSError as error:
                raise Refused(f"Cannot listen on {host}:{port}: {error.strerror}.") from error
            sockets.callback(listener.close)
            found = int(listener.getsockname()[1])
            last.write_text(str(found))
            return listener, found

        main, port = opened(settings.host, "last_port", settings.port)
        scheme, here_too = "https" if tls else "http", {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
        url = exposure.url_of(scheme, public_host(settings), port)
        near = exposure.url_of(scheme, here_too.get(settings.host, settings.host), port)
        if tls is None and exposure.is_private(settings):
            yield _Addresses(main=main, public=url, local=url, agents=url)
            return
        inner, inner_port = opened("127.0.0.1", "last_local_port")
        here = exposure.url_of("http", "127.0.0.1", inner_port)
        yield _Addresses(main=main, public=url, local=here if tls else near, agents=here, inner=inner, tls=tls)


def _read_port(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
