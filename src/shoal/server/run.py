"""From settings to a serving process and back: lock, open, listen, announce; on SIGTERM the same in reverse."""

from __future__ import annotations

import fcntl
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from shoal.core.errors import MissingExtra, Refused
from shoal.core.instance import Instance, settle
from shoal.core.settings import Layout, ServerSettings
from shoal.engines.local import LocalEngine
from shoal.engines.many import Engines
from shoal.engines.nursery import Nursery
from shoal.server import startup
from shoal.server.app import create_app
from shoal.server.context import Context
from shoal.server.db import Database
from shoal.server.lane import LaneProtocol
from shoal.server.live import Live
from shoal.server.migrations import upgrade
from shoal.server.reserve import Reserve
from shoal.server.scheduler.loop import Scheduler
from shoal.server.services import copies, engines, ledger, pool_own
from shoal.server.services.accounts import ensure_owner
from shoal.server.services.git import clean_up
from shoal.server.services.imports import resume_imports, stop_imports
from shoal.server.services.lease_clock import LeaseClock
from shoal.server.services.secret_key import open_vault
from shoal.server.services.swarm_watch import SwarmWatch
from shoal.server.sweeper.loop import Sweeper
from shoal.store.blobstore import BlobStore
from shoal.store.local import LocalStore

logger = logging.getLogger(__name__)
_ANY_INSTANCE = Instance("")
_LOCK_TRIES, _LOCK_PAUSE_S = 20, 0.05


def run(layout: Layout, settings: ServerSettings, *, take_over: bool = False, new_secret_key: bool = False) -> int:
    """Serve until SIGTERM.

    `take_over`: this directory stands in for the one it was copied from. `new_secret_key`: replace a lost secret.key.
    """
    logging.basicConfig(
        level=os.environ.get("SHOAL_LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request
    layout.close()
    reserve = Reserve(layout.reserve, settings.disk_reserve_mb << 20)
    with (
        _sole_server(layout),
        startup.announced(layout, take_over=take_over) as word,
        _reserving(reserve),
        _listening(layout, settings) as (listener, url),
    ):
        context = open_context(
            layout, settings, word.instance, word.doing, new_secret_key=new_secret_key, reserve=reserve
        )
        word.doing("finding the jobs that run")
        scheduler, sweeper, swarms = Scheduler(context, url), Sweeper(context), SwarmWatch(context, url)
        app = create_app(context)
        context.pool.open(context, app)
        context.gateway.open(context)
        server = _Server(
            uvicorn.Config(
                app,
                http=LaneProtocol,
                log_level="warning",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=5,
            ),
            on_ready=lambda: word.ready(url),
            on_exit=context.live.close,
        )
        adopted = context.engine.adopt()
        logger.info("serving %s at %s; %d attempts adopted", layout.root, url, len(adopted))
        scheduler.start()
        sweeper.start()
        swarms.start()
        leases = LeaseClock(context)
        leases.start()
        resume_imports(context)
        # uvicorn stops in good order on these, then raises them again: that must not end us before we have closed.
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: None)
        # What is loaded now stays: looking through it for garbage again and again costs a third of taking metrics in.
        gc.freeze()
        gc.enable()
        try:
            server.run(sockets=[listener])
        finally:
            context.live.close()
            context.labs.close()
            context.gateway.close()
            leases.stop()
            context.mail.close()
            context.pool.close()
            scheduler.stop()
            sweeper.stop()
            swarms.stop()
            stop_imports(context)
            context.db.close()
    return 0


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
    db = Database(layout.database)
    try:
        upgrade(db.writer, doing=doing)
        doing("opening what the database describes")
        vault = open_vault(layout, db, new_key=new_secret_key)
    except BaseException:
        db.close()
        raise
    context = Context(
        layout=layout,
        settings=settings,
        private=_is_loopback(settings.host) and not settings.shared,
        db=db,
        store=_open_store(layout, settings),
        vault=vault,
        engine=_open_engine(layout, settings),
        live=Live(),
        instance=instance.id,
    )
    ensure_owner(context)
    engines.open_all(context)
    pool_own.restore_drained(context)
    ledger.begin(context)
    if instance.copy_of:
        copies.disown(context)
        settle(layout, instance)
    clean_up(context)
    db.reserve = reserve
    return context


def _open_engine(layout: Layout, settings: ServerSettings) -> Engines:
    agent_env = {"SHOAL_LOG_RATE_KB_S": str(settings.log_rate_kb_s)}
    nursery = Nursery(sys.executable, agent_env, layout.server_dir / "nursery.log") if settings.warm else None
    local = LocalEngine(layout.nodes_dir, slots=settings.slots, agent_env=agent_env, nursery=nursery)
    return Engines(local=local)


def _open_store(layout: Layout, settings: ServerSettings) -> BlobStore:
    if not settings.store:
        return LocalStore(layout.store_dir)
    try:
        from shoal.store.s3 import S3Store
    except ImportError:
        raise MissingExtra(
            "A store on S3 needs a package that is not installed.", hint="pip install 'shoal[s3]'"
        ) from None
    return S3Store(settings.store, index_path=layout.server_dir / "s3-index.db")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, *, on_ready: Callable[[], None], on_exit: Callable[[], None]):
        super().__init__(config)
        self._on_ready, self._on_exit = on_ready, on_exit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_exit()  # ends the streams of followers, which would otherwise hold us up
        await super().shutdown(sockets)


@contextmanager
def _sole_server(layout: Layout) -> Iterator[None]:
    """The kernel drops the lock with the process, however it ends."""
    with layout.server_lock.open("a") as file:
        # Commands that ask whether the lock is held take a shared one for an instant, so one refusal proves nothing.
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
    """Before anything else is written: on a full disk the rest of the start needs this space."""
    reserve.open()
    yield


@contextmanager
def _listening(layout: Layout, settings: ServerSettings) -> Iterator[tuple[socket.socket, str]]:
    """A fresh start tries the last port again, so that agents and browsers find us where we were."""
    last = layout.server_dir / "last_port"
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    ports = [settings.port] if settings.port else [_read_port(last), 0]
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, port))
            break
        except OSError as error:
            listener.close()
            if port == ports[-1]:
                raise Refused(f"Cannot listen on {settings.host}:{port}: {error.strerror}.") from error
    listener.listen(1024)
    port = listener.getsockname()[1]
    last.write_text(str(port))
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)  # noqa: S104
    try:
        yield listener, f"http://{host}:{port}"
    finally:
        listener.close()


def _read_port(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
