"""The `hmp` object, the monitor of NetMind's swarm mode. It logs the swarm's metrics to a run and saves checkpoints."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shoal.compat.netmind.registered import Registered
from shoal.compat.swarm import membership
from shoal.core.errors import UsageError
from shoal.sdk import library_loops, start

if TYPE_CHECKING:
    from shoal.sdk.run import Run

logger = logging.getLogger(__name__)

_GONE_S = 120.0
"""Seconds without a report after which a peer is gone, as in hivemind."""


class MonitorPilot:
    """The object `hmp`, one per process."""

    def __init__(self, registered: Registered) -> None:
        self._registered = registered
        self._run: Run | None = None
        self._last: tuple[int, dict[str, Any]] = (0, {})
        self._is_registered = False
        self._is_busy = False

    def init(self, dht: Any, local_public_key: bytes | None = None) -> None:
        """Start the monitor's run. From now on `dht.get` leaves out metrics that would make the sums invalid."""
        if self._run is not None:
            return
        membership.enter(dht)
        self._run = start.current() or start.init(parallel="none", resume="never", checkpoint_every_s=None)
        self._handle_signals()
        get = dht.get

        def get_valid(key: Any, *args: Any, **options: Any) -> Any:
            found = get(key, *args, **options)
            is_metrics = isinstance(key, str) and key.endswith("_metrics") and not options.get("return_future")
            return _valid(found) if is_metrics else found

        dht.get = get_valid

    def step(self, current_step: int, monitor_metrics: Mapping[str, Any]) -> None:
        """Log the swarm's step and metrics (`{}` before the first) at every refresh; end the process if the run should stop."""
        run, current = self._ready(), (int(current_step), dict(monitor_metrics))
        with self._busy():
            if current[1] and current != self._last:
                library_loops.log_at(run, *current)
            self._last = current
        self._update_run()

    def save_pretrained(self) -> None:
        """Save the registered model and optimizer as a checkpoint of the swarm's step."""
        run = self._ready()
        if not self._registered.models:
            raise UsageError("hmp.save_pretrained has nothing to save", hint="call NetmindModel(model) first")
        with self._busy():
            if not self._is_registered:
                self._is_registered = True
                library_loops.register(run, *self._registered.models, *self._registered.optimizers)
            library_loops.save_soon(run)

    def _update_run(self) -> None:
        """Report the step, and end the process if the run should stop."""
        run = self._ready()
        with self._busy():
            library_loops.count(run, self._last[0], total=None)
            if run.should_stop:
                run.finish()
                raise SystemExit(0)

    def _handle_signals(self) -> None:
        """React to stop signals immediately, because monitors sleep most of the time."""
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(signum)
            if callable(before):
                signal.signal(signum, functools.partial(self._on_signal, before))

    def _on_signal(self, before: Callable[..., Any], signum: int, frame: Any) -> None:
        before(signum, frame)
        if not self._is_busy and self._run is not None:
            self._update_run()

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        """Keep a signal handler from interrupting a write."""
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    def _ready(self) -> Run:
        if self._run is None:
            raise UsageError("the monitor is not in a swarm", hint="call hmp.init(dht, local_public_key) first")
        return self._run


def _valid(found: Any) -> Any:
    """Return metrics without peers that are gone or report no mini-steps or no finite loss; None if none are left.

    With them the monitor would divide by zero, get NaN, or count a peer for ten minutes after its end.
    """
    if found is None or not isinstance(found.value, dict):
        return found
    records = {peer: record for peer, record in found.value.items() if _is_whole(record.value)}
    if not records:
        return None
    step = max(record.value["step"] for record in records.values())
    newest = max(record.expiration_time for record in records.values())
    alive = {
        peer: record
        for peer, record in records.items()
        if record.value["step"] == step or newest - record.expiration_time <= _GONE_S
    }
    if len(alive) < len(found.value):
        logger.debug("the metrics of %d of %d peers are left out", len(found.value) - len(alive), len(found.value))
    return type(found)(alive, found.expiration_time)


def _is_whole(value: Any) -> bool:
    return isinstance(value, dict) and value.get("mini_steps", 0) > 0 and math.isfinite(value.get("loss", math.nan))
