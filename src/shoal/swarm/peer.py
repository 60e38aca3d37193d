"""This machine in the swarm's network: hivemind's DHT process and its p2p daemon, which live no longer than we do."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from shoal.agent.inner import prctl
from shoal.core.errors import MissingExtra, Unreachable

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_RETRY_S = 2.0


def load_hivemind() -> Any:
    try:
        return import_module("hivemind")
    except ImportError as error:
        raise MissingExtra(
            f"Training in a swarm needs hivemind, which cannot be loaded: {error}.", hint="pip install 'shoal[swarm]'"
        ) from error


def start_dht(
    *,
    initial_peers: Sequence[str] = (),
    listen: Sequence[str] = ("/ip4/0.0.0.0/tcp/0",),
    announce: Sequence[str] | None = None,
    client_mode: bool = False,
    identity_path: str | None = None,
    record_validators: Sequence[Any] = (),
    timeout_s: float = 60.0,
) -> Any:
    """A running hivemind.DHT. Call it from the main thread: its processes die with the thread that started them.

    The daemon refuses to start while none of its first peers answers, so that is tried again until the time is over.
    """
    load_hivemind()
    kind = import_module("shoal.swarm.processes").OwnedDHT
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return kind(
                initial_peers=list(initial_peers) or None,
                host_maddrs=None if client_mode else list(listen),
                announce_maddrs=list(announce) if announce else None,
                client_mode=client_mode,
                no_listen=client_mode,
                identity_path=identity_path,
                record_validators=list(record_validators),
                use_ipfs=False,
                start=True,
            )
        except Exception as error:
            if time.monotonic() + _RETRY_S > deadline:
                raise Unreachable(
                    f"No peer of the swarm answers at {', '.join(initial_peers) or 'any address'}: {error}",
                    hint="see what is in the way with: shoal swarm doctor",
                ) from error
            logger.info("shoal: the swarm does not answer yet (%s); trying again", error)
            time.sleep(_RETRY_S)


def addresses(dht: Any) -> list[str]:
    """Where other peers can reach this one: nowhere, if it only connects to others."""
    return [] if dht.client_mode else [str(address) for address in dht.get_visible_maddrs()]


def settle_in(parent: int) -> None:
    """For a process just forked by `parent`: signals are no longer the script's, and it ends when the script does."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(parent)


def own_subprocesses() -> None:
    """In this process, whatever asyncio starts from now on is killed when the thread that started it is gone."""
    start: Callable[..., Any] = asyncio.subprocess.create_subprocess_exec
    me = os.getpid()

    def apart() -> None:
        os.setpgid(0, 0)  # Ctrl-C is for the script, which still has to say good-bye
        _die_with(me)

    @functools.wraps(start)
    async def owned(*argv: Any, **options: Any) -> Any:
        return await start(*argv, preexec_fn=apart, **options)

    asyncio.subprocess.create_subprocess_exec = owned


@contextmanager
def keep_interrupt() -> Iterator[None]:
    """hivemind makes the process that starts an averager deaf to Ctrl-C; not ours."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _die_with(parent: int) -> None:
    """Be killed when the thread that started us is gone, or at once if it is already."""
    if sys.platform == "linux":
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
