"""Large-batch training: hivemind's optimizer in its synchronous mode behind the same few calls as `rounds`.

Gradients are gathered until the swarm has seen a batch, averaged, and one step is made by all. A round is a step.
"""

from __future__ import annotations

import copy
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

from shoal.swarm.codec import make_codec
from shoal.swarm.links import enter, peer_of, say_good_bye
from shoal.swarm.peer import addresses, keep_interrupt, settle_in
from shoal.swarm.records import Progress
from shoal.swarm.reducing import guarded
from shoal.swarm.schedule import Schedule
from shoal.swarm.settings import Settings
from shoal.swarm.tally import Tally
from shoal.swarm.watch import Watch

hivemind: Any = import_module("hivemind")
_gradients: Any = import_module("hivemind.optim.grad_averager")

T = TypeVar("T")


class LargeBatch:
    """One peer's part in a swarm. `optimizer` is stepped when the swarm has a batch, by whoever calls `step`."""

    def __init__(self, settings: Settings, optimizer: Any, scheduler: Any = None):
        self._settings, self._optimizer = settings, optimizer
        self._left = False
        self.stopped = False
        self.tally = Tally()
        self._schedule = Schedule(scheduler) if scheduler is not None else None
        self._dht, book = enter(settings)
        self._peer, self._p2p = peer_of(settings, self._dht), str(self._dht.peer_id)
        patience = {"request_timeout": min(3.0, settings.matchmaking_s / 2)}
        with _owned_averagers(), keep_interrupt():
            self._inner: Any = hivemind.Optimizer(
                dht=self._dht,
                run_id=settings.run_id,
                target_batch_size=settings.target_batch_size,
                **_placed(optimizer, settings),
                grad_compression=make_codec(settings.compression),
                grad_averager_factory=functools.partial(
                    guarded(_gradients.GradientAverager),
                    aggregation=settings.aggregation,
                    clip=settings.clip,
                    **patience,
                ),
                averager_opts=patience,
                state_averaging_compression=make_codec("none" if settings.compression == "none" else "fp16"),
                matchmaking_time=settings.matchmaking_s,
                averaging_timeout=settings.averaging_s,
                delay_state_averaging=settings.delayed,
                tracker_opts={
                    "min_refresh_period": settings.refresh_s,
                    "default_refresh_period": settings.refresh_s,
                    "metadata_expiration": settings.expiry_s,
                },
            )
        self._catch_up()
        self._behind_since = time.monotonic()
        self._watch = Watch(book, self._describe, every_s=max(1.0, settings.refresh_s))
        self._watch.start()
        self._watch.tell()

    @property
    def round(self) -> int:
        return int(self._inner.local_epoch)

    @property
    def global_step(self) -> int:
        return self.round

    @property
    def samples(self) -> int:
        return self.round * self._settings.target_batch_size

    @property
    def num_peers(self) -> int:
        return 1 + sum(r.peer != self._peer and r.state != "leaving" for r in self._watch.records.values())

    @property
    def address(self) -> list[str]:
        return addresses(self._dht)

    def step(self, inner_step: Callable[[], T], samples: int) -> T | None:
        """`inner_step` is not called while the peer belongs to the swarm: hivemind steps the optimizer itself."""
        if self._left:
            return inner_step()
        before = self.round
        stepped = self._inner.state_averager.optimizer
        for own, given in zip(stepped.param_groups, self._optimizer.param_groups, strict=True):
            own.update({name: value for name, value in given.items() if name != "params"})  # as schedulers set them
        self._inner.step(batch_size=samples)
        self._keep_up()
        self.tally.add(samples)
        if self._watch.order is not None:
            self.stopped = self._watch.order.stop
        if self.round != before:
            self.tally.close(None, 0.0)
            self._watch.tell()
            if self._schedule is not None:
                self._schedule.follow(self.round)
        return None

    def note(self, loss: float) -> None:
        self.tally.note(loss)

    def leave(self) -> None:
        if self._left:
            return
        self._left = True
        self._watch.close()
        say_good_bye(
            (self._watch.publish, self._inner.shutdown, self._dht.shutdown),
            (self._inner.state_averager, self._inner.grad_averager, self._dht),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Model and optimizer have been loaded; the swarm goes on from their round unless it is already further."""
        self._inner.state_averager.local_epoch = max(self.round, int(saved["round"]))

    def _describe(self) -> Progress:
        """Without a hash: the state of this way to train is hivemind's own."""
        return Progress(
            peer=self._peer,
            name=self._settings.peer_name,
            p2p=self._p2p,
            round=self.round,
            samples_per_s=float(self._inner.tracker.performance_ema.samples_per_second),
            state="leaving" if self._left else "training",
            **self.tally.told(),
        )

    def _catch_up(self) -> None:
        """Begin with the swarm's state: hivemind asks every peer once, and begins anew where each is busy or slow to answer."""
        deadline = time.monotonic() + self._settings.averaging_s
        self._inner.load_state_from_peers()
        while self.round + 1 < self._inner.tracker.global_epoch and time.monotonic() < deadline:
            time.sleep(self._settings.refresh_s)
            self._inner.load_state_from_peers()

    def _keep_up(self) -> None:
        """hivemind reloads only what is two rounds behind; a late peer then stays one behind for ever."""
        now = time.monotonic()
        if self._inner.tracker.global_epoch <= self.round:
            self._behind_since = now
        elif now - self._behind_since > 2 * self._settings.matchmaking_s:
            self._inner.load_state_from_peers()
            self._behind_since = now


def _placed(optimizer: Any, settings: Settings) -> dict[str, Any]:
    """hivemind's options that say where the optimizer is and when it steps. It makes those it moves to the CPU itself."""
    if not (settings.offload or settings.delayed):
        return {"optimizer": optimizer}

    def like_it(groups: Any) -> Any:
        made = copy.copy(optimizer)
        made.state, made.param_groups = defaultdict(dict), [dict(group) for group in groups]
        return made

    return {
        "params": optimizer.param_groups,
        "optimizer": like_it,
        "offload_optimizer": True,
        "delay_optimizer_step": settings.delayed,
        "delay_grad_averaging": settings.delayed,
    }


@contextmanager
def _owned_averagers() -> Iterator[None]:
    """While this lasts, averagers that hivemind starts die with this process."""
    start = hivemind.DecentralizedAverager.run

    def run(averager: Any) -> None:
        settle_in(averager._parent_pid)
        start(averager)

    hivemind.DecentralizedAverager.run = run
    try:
        yield
    finally:
        hivemind.DecentralizedAverager.run = start
