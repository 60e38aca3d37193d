"""Large-batch training: hivemind's optimizer in synchronous mode, with the same methods as `shoal.swarm.rounds.Rounds`.

Gradients are accumulated until the swarm has seen a batch; then they are averaged and all peers make one step. One round is
one step.
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

from shoal.swarm.averaging.averagers import guarded
from shoal.swarm.averaging.codec import make_codec
from shoal.swarm.links import enter, peer_of, shut_down
from shoal.swarm.peer import addresses, keep_interrupt, tie_to_parent
from shoal.swarm.records import Progress
from shoal.swarm.round_stats import RoundStats
from shoal.swarm.schedule import Schedule
from shoal.swarm.settings import Settings
from shoal.swarm.watch import Watch

hivemind: Any = import_module("hivemind")
_gradients: Any = import_module("hivemind.optim.grad_averager")

T = TypeVar("T")


class LargeBatch:
    """One peer's part in a large-batch swarm. The optimizer is stepped inside `step` when the swarm has a full batch."""

    def __init__(self, settings: Settings, optimizer: Any, scheduler: Any = None):
        self._settings, self._optimizer = settings, optimizer
        self._left = False
        self.stopped = False
        self.stats = RoundStats()
        self._schedule = Schedule(scheduler) if scheduler is not None else None
        self._dht, dht_records = enter(settings)
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
        self._watch = Watch(dht_records, self._describe, every_s=max(1.0, settings.refresh_s))
        self._watch.start()
        self._watch.notify()

    @property
    def round(self) -> int:
        """Number of global steps made."""
        return int(self._inner.local_epoch)

    @property
    def global_step(self) -> int:
        """The same as `round`."""
        return self.round

    @property
    def samples(self) -> int:
        """Samples that the swarm has trained on."""
        return self.round * self._settings.target_batch_size

    @property
    def num_peers(self) -> int:
        """Peers in the swarm at the last read of the records, with this one."""
        return 1 + sum(r.peer != self._peer and r.state != "leaving" for r in self._watch.records.values())

    @property
    def address(self) -> list[str]:
        """Addresses at which peers reach this one: their `initial_peers`."""
        return addresses(self._dht)

    def step(self, inner_step: Callable[[], T], samples: int) -> T | None:
        """Add the gradients of `samples` samples. hivemind steps the optimizer; `inner_step` is called only after `leave`."""
        if self._left:
            return inner_step()
        before = self.round
        stepped = self._inner.state_averager.optimizer
        for own, given in zip(stepped.param_groups, self._optimizer.param_groups, strict=True):
            own.update({name: value for name, value in given.items() if name != "params"})  # as schedulers set them
        self._inner.step(batch_size=samples)
        self._keep_up()
        self.stats.add(samples)
        if self._watch.commands is not None:
            self.stopped = self._watch.commands.stop
        if self.round != before:
            self.stats.close(None, 0.0)
            self._watch.notify()
            if self._schedule is not None:
                self._schedule.follow(self.round)
        return None

    def note(self, loss: float) -> None:
        """Record the loss of the last step, for the swarm's statistics."""
        self.stats.note(loss)

    def leave(self) -> None:
        """Announce that this peer leaves and end its processes."""
        if self._left:
            return
        self._left = True
        self._watch.close()
        shut_down(
            (self._watch.publish, self._inner.shutdown, self._dht.shutdown),
            (self._inner.state_averager, self._inner.grad_averager, self._dht),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from the saved round unless the swarm is further. Model and optimizer are loaded by the caller."""
        self._inner.state_averager.local_epoch = max(self.round, int(saved["round"]))

    def _describe(self) -> Progress:
        """Return this peer's record. It has no state hash, because hivemind manages the state in this mode."""
        return Progress(
            peer=self._peer,
            name=self._settings.peer_name,
            p2p=self._p2p,
            round=self.round,
            samples_per_s=float(self._inner.tracker.performance_ema.samples_per_second),
            state="leaving" if self._left else "training",
            **self.stats.published(),
        )

    def _catch_up(self) -> None:
        """Load the swarm's state, retrying for `averaging_s`.

        hivemind asks each peer once and starts from scratch if all of them are busy or slow.
        """
        deadline = time.monotonic() + self._settings.averaging_s
        self._inner.load_state_from_peers()
        while self.round + 1 < self._inner.tracker.global_epoch and time.monotonic() < deadline:
            time.sleep(self._settings.refresh_s)
            self._inner.load_state_from_peers()

    def _keep_up(self) -> None:
        """Reload the state if this peer stays one round behind; hivemind reloads only from two rounds on."""
        now = time.monotonic()
        if self._inner.tracker.global_epoch <= self.round:
            self._behind_since = now
        elif now - self._behind_since > 2 * self._settings.matchmaking_s:
            self._inner.load_state_from_peers()
            self._behind_since = now


def _placed(optimizer: Any, settings: Settings) -> dict[str, Any]:
    """Return hivemind's options for where the optimizer runs and when it steps. An offloaded one is rebuilt by hivemind."""
    if not (settings.offload or settings.delayed):
        return {"optimizer": optimizer}

    def rebuild(groups: Any) -> Any:
        made = copy.copy(optimizer)
        made.state, made.param_groups = defaultdict(dict), [dict(group) for group in groups]
        return made

    return {
        "params": optimizer.param_groups,
        "optimizer": rebuild,
        "offload_optimizer": True,
        "delay_optimizer_step": settings.delayed,
        "delay_grad_averaging": settings.delayed,
    }


@contextmanager
def _owned_averagers() -> Iterator[None]:
    """Tie the averagers that hivemind starts inside this context to this process, so that they end with it."""
    start = hivemind.DecentralizedAverager.run

    def run(averager: Any) -> None:
        tie_to_parent(averager._parent_pid)
        start(averager)

    hivemind.DecentralizedAverager.run = run
    try:
        yield
    finally:
        hivemind.DecentralizedAverager.run = start
