"""`hmp`: the monitor of NetMind's swarm mode. It shows the swarm's metrics as a run's, and saves its model as checkpoints."""

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
from shoal.sdk import adapt, start

if TYPE_CHECKING:
    from shoal.sdk.run import Run

logger = logging.getLogger(__name__)

_GONE_S = 120.0
"""As long as hivemind itself counts a peer that has fallen silent."""


class MonitorPilot:
    """One per process, called `hmp`."""

    def __init__(self, registered: Registered) -> None:
        self._registered = registered
        self._run: Run | None = None
        self._told: tuple[int, dict[str, Any]] = (0, {})
        self._is_registered = False
        self._is_busy = False

    def init(self, dht: Any, local_public_key: bytes | None = None) -> None:
        """Start the monitor's run. From here on `dht.get` leaves out metrics that would spoil the sums."""
        if self._run is not None:
            return
        membership.enter(dht)
        self._run = start.current() or start.init(parallel="none", resume="never", checkpoint_every_s=None)
        self._hear_signals()
        get = dht.get

        def get_sound(key: Any, *args: Any, **options: Any) -> Any:
            found = get(key, *args, **options)
            is_metrics = isinstance(key, str) and key.endswith("_metrics") and not options.get("return_future")
            return _sound(found) if is_metrics else found

        dht.get = get_sound

    def step(self, current_step: int, monitor_metrics: Mapping[str, Any]) -> None:
        """Every refresh: the swarm's step and its metrics, `{}` before the first. Ends the process if the run is to stop."""
        run, told = self._ready(), (int(current_step), dict(monitor_metrics))
        with self._busy():
            if told[1] and told != self._told:
                adapt.log_at(run, *told)
            self._told = told
        self._look_up()

    def save_pretrained(self) -> None:
        """Save what NetmindModel and NetmindOptimizer were given, as a checkpoint of the swarm's step."""
        run = self._ready()
        if not self._registered.models:
            raise UsageError("hmp.save_pretrained has nothing to save", hint="NetmindModel(model) comes first")
        with self._busy():
            if not self._is_registered:
                self._is_registered = True
                adapt.register(run, *self._registered.models, *self._registered.optimizers)
            adapt.save_soon(run)

    def _look_up(self) -> None:
        """Tell how far it is, and leave if the run is to stop."""
        run = self._ready()
        with self._busy():
            adapt.count(run, self._told[0], total=None)
            if run.should_stop:
                run.finish()
                raise SystemExit(0)

    def _hear_signals(self) -> None:
        """Monitors sleep most of the time: a stop is not to wait until they wake up."""
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(signum)
            if callable(before):
                signal.signal(signum, functools.partial(self._on_signal, before))

    def _on_signal(self, before: Callable[..., Any], signum: int, frame: Any) -> None:
        before(signum, frame)
        if not self._is_busy and self._run is not None:
            self._look_up()

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        """Not to be interrupted in what is being written."""
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    def _ready(self) -> Run:
        if self._run is None:
            raise UsageError("there is no swarm to watch", hint="hmp.init(dht, local_public_key) comes first")
        return self._run


def _sound(found: Any) -> Any:
    """Without peers that report no mini-steps or no finite loss, and without those that are gone; None if that is all.

    The monitor's sums would divide by zero, become NaN, or count a peer for ten minutes after its end.
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
        logger.debug("%d of %d peers' metrics are left out", len(found.value) - len(alive), len(found.value))
    return type(found)(alive, found.expiration_time)


def _is_whole(value: Any) -> bool:
    return isinstance(value, dict) and value.get("mini_steps", 0) > 0 and math.isfinite(value.get("loss", math.nan))
