"""This machine's connection to the swarm: hivemind's DHT process and its p2p daemon. Both end when our process ends."""

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

from shoal.agent.workers.parent import prctl
from shoal.core.errors import MissingExtra, Unreachable

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_RETRY_S = 2.0


def load_hivemind() -> Any:
    """Import hivemind; raise MissingExtra with the pip command if it is not installed."""
    try:
        return import_module("hivemind")
    except ImportError as error:
        raise MissingExtra(
            f"Training in a swarm needs hivemind, which cannot be loaded: {error}.",
            hint="pip install 'shoal-train[swarm]'",
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
    """Start and return a hivemind.DHT.

    Call it from the main thread: the kernel kills its processes when the thread that started them ends. The daemon does not
    start while none of `initial_peers` answers, so this retries for `timeout_s` and then raises Unreachable.
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
                    hint="find the cause with: shoal swarm doctor",
                ) from error
            logger.info("shoal: the swarm does not answer yet (%s); trying again", error)
            time.sleep(_RETRY_S)


def addresses(dht: Any) -> list[str]:
    """Return the addresses at which peers can reach this one; none in client mode."""
    return [] if dht.client_mode else [str(address) for address in dht.get_visible_maddrs()]


def tie_to_parent(parent: int) -> None:
    """Prepare a process just forked by `parent`: reset the script's signal handlers and end when the parent ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(parent)


def own_subprocesses() -> None:
    """Patch asyncio in this process so that its subprocesses are killed when the thread that started them ends."""
    start: Callable[..., Any] = asyncio.subprocess.create_subprocess_exec
    me = os.getpid()

    def apart() -> None:
        os.setpgid(0, 0)  # Ctrl-C must reach only the script, which then leaves the swarm in order
        _die_with(me)

    @functools.wraps(start)
    async def owned(*argv: Any, **options: Any) -> Any:
        return await start(*argv, preexec_fn=apart, **options)

    asyncio.subprocess.create_subprocess_exec = owned


@contextmanager
def keep_interrupt() -> Iterator[None]:
    """Restore the Ctrl-C handler, which hivemind disables in the process that starts an averager."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends; exit now if the parent is already gone."""
    if sys.platform == "linux":
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
