"""Low-communication training: peers make local steps and exchange their updates once per round.

A round ends when the whole swarm, not this peer, has seen the round's samples. All peers then make the same outer step with
the same average and hold the same model again. A peer that missed the exchange downloads the state the others agree on.

Why it is safe: only the training thread changes this object and the model. Two other threads read it. The watch thread calls
`_describe`; a record built in the middle of a change is replaced by the next one, because every change ends with `notify`.
hivemind's thread calls `served(self._state)` to serve downloads: a State is immutable, holds copies of the tensors, and is
replaced as a whole. Records of other peers arrive as a new mapping in `watch.records`, which is never changed in place.
A crash at any line loses only this peer's work since the last round: states on disk are renamed into place when complete,
and the restarted peer gets the agreed state from the others. The averager and DHT processes end with this one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar

from shoal.core.errors import Refused, Unreachable
from shoal.swarm import sources
from shoal.swarm.agreement import Agreed, Place, agreed, count_beside, is_about_to_follow, is_astray, vouched
from shoal.swarm.averaging.exchange import Exchange, served
from shoal.swarm.averaging.wire import State, state_hash
from shoal.swarm.links import Links
from shoal.swarm.outer import Outer
from shoal.swarm.peer import addresses
from shoal.swarm.records import OwnerCommands, Progress
from shoal.swarm.round_stats import RoundStats
from shoal.swarm.schedule import Schedule
from shoal.swarm.settings import Settings, round_samples

torch: Any = import_module("torch")
logger = logging.getLogger(__name__)

_ATTEMPTS = 2
"""Tries of an exchange, and of a download of the agreed state."""
_READS, _LAG_S = 4, 0.25
"""Reads of the records until a downloaded state counts as unknown, and seconds between them."""
_RECENT = 4
"""States named in our record: the current one and a few before it."""
_JOIN_S = 90.0
"""Seconds to wait for a state when joining. It is longer than the records of dead peers live."""
T = TypeVar("T")


class Rounds:
    """One peer's part in a swarm with local steps.

    The constructor starts processes and loads the swarm's state; `leave` ends the processes. Raises Refused if the model is
    not the swarm's, and Unreachable if no peer sends the state of a running swarm.
    """

    def __init__(self, settings: Settings, model: Any, scheduler: Any = None, *, optimizer: Any = None):
        self._settings, self._optimizer = settings, optimizer
        self._outer = Outer(
            model, lr=settings.outer_lr, momentum=settings.outer_momentum, feeds_back=settings.compression == "int8"
        )
        if settings.fingerprint not in (None, self._outer.fingerprint):
            raise Refused(
                "This script's model differs from the swarm's model in parameter names or shapes.",
                hint="fetch the swarm's code again: shoal swarm join LINK",
            )
        self._schedule = Schedule(scheduler) if scheduler is not None else None
        self._place, self.samples = Place(0, 0), 0
        self._left = False
        self._ended_at = float("-inf")
        """Time when this peer last finished a round."""
        self._due_at: float | None = None
        """Time since when this round waits for an exchange with the other peers in it."""
        self._seen: Mapping[str, Progress] | None = None
        self._commands_seen: OwnerCommands | None = None
        self.stats = RoundStats()
        self.stopped = False
        """True once the owner has told all peers to stop."""
        self._recent: dict[str, int] = {}
        self._local_states = sources.LocalStates(settings.state_dir)
        self._state = self._capture_state()
        self._links = links = Links(
            settings, self._outer.anchor.numel(), state=lambda: served(self._state), describe=self._describe
        )
        self._averager, self._tracker, self._watch = links.averager, links.tracker, links.watch
        try:
            self._join()
        except BaseException:
            links.close()
            raise
        self._watch.start()
        self._watch.notify()

    # --- for scripts ---

    @property
    def round(self) -> int:
        """Number of the current round."""
        return self._place.round

    @property
    def global_step(self) -> int:
        """Batches of `target_batch_size` that the swarm has trained on, as far as this peer knows."""
        known = min(self._tracker.global_progress.samples_accumulated, self._tracker.target_batch_size)
        return int((self.samples + max(known, self.stats.samples)) // self._settings.target_batch_size)

    @property
    def num_peers(self) -> int:
        """Peers in the swarm at the last read of the records, in any round, with this one."""
        return 1 + sum(record.state != "leaving" for record in self._seen_last())

    @property
    def address(self) -> list[str]:
        """Addresses at which peers reach this one: their `initial_peers`."""
        return addresses(self._links.dht)

    def step(self, inner_step: Callable[[], T], samples: int) -> T | None:
        """Make one step of the inner optimizer, and end the round if the swarm has seen all its samples.

        Args:
            inner_step: Function that steps the local optimizer.
            samples: Samples behind the current gradients.

        Returns the result of `inner_step`; None if the model was replaced first, which makes the gradients useless.

        Example:
            >>> swarm.step(optimizer.step, samples=len(batch))
        """
        if self._left:
            return inner_step()
        goal = self._other_state()
        if self._follow_owner() or (goal is not None and self._catch_up(goal)):
            return None  # the gradients belong to the previous model
        result = inner_step()
        self.stats.add(samples)
        self._tracker.report(self._place.epoch, self.stats.samples)
        self._follow_schedule()
        if self._tracker.global_epoch > self._place.epoch:
            ahead = self._agreed_by_others()
            if ahead is not None and ahead.place.epoch > self._place.epoch:
                self._catch_up(ahead)
        elif self._tracker.ready_to_update_epoch and self.stats.samples:
            self._end_round()
        return result

    def note(self, loss: float) -> None:
        """Record the loss of the last step, for the swarm's statistics."""
        self.stats.note(loss)

    def leave(self) -> None:
        """Announce that this peer leaves and end its processes. The model keeps the local steps since the last round."""
        if self._left:
            return
        try:
            self._wait_for_followers()
        finally:
            self._left = True
            self._links.close()

    def _wait_for_followers(self) -> None:
        """Serve the state a little longer for peers whose last exchange failed; we may be their only source."""
        deadline = self._ended_at + 2 * self._settings.matchmaking_s
        while not self._settings.client_mode and time.monotonic() < deadline:
            with suppress(Exception):  # the network may be gone
                self._watch.refresh()
            if not any(is_about_to_follow(record, self._place, self._recent) for record in self._seen_last()):
                return
            time.sleep(_LAG_S)

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the end of the last round, as a joining peer would receive it."""
        state, rollbacks = self._state, self._place.rollbacks
        tensors = dict(zip(state.names, state.tensors, strict=True))
        return {"tensors": tensors, "round": state.round, "rollbacks": rollbacks, "samples": state.samples}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load a saved state unless the swarm is already further."""
        place = Place(saved["rollbacks"], saved["round"])
        if place.epoch > self._place.epoch:
            self._load_tensors(saved["tensors"], place, saved["samples"])

    # --- end of a round ---

    def _end_round(self) -> None:
        began = time.monotonic()
        update = self._outer.update()
        if not torch.isfinite(update).all():
            logger.warning("shoal: this peer's parameters are not finite; they are reset to the start of the round")
            self._outer.write()
            self._outer.residual.zero_()
            self.stats.drop()
            return
        with self._tracker.pause_updates():
            found = self._exchange(update)
            if not isinstance(found, Agreed):
                is_whole = found is not None and found.is_whole
                if is_whole or not self._should_wait():
                    self._finish_round(update, found, time.monotonic() - began)
                return
        self._catch_up(found)

    def _should_wait(self) -> bool:
        """Check whether to wait for the others rather than finish the round alone and drift away from them.

        While it waits, this peer keeps training: the others may come to the exchange, or agree on a state to download.
        """
        now = time.monotonic()
        self._due_at = now if self._due_at is None else self._due_at
        others = [r for r in self._seen_last() if r.state != "leaving" and Place.of(r).epoch >= self._place.epoch]
        if others and now - self._due_at < 3 * self._settings.matchmaking_s:
            return True
        if others:
            logger.warning("shoal: round %d: continued alone, no other peer came to the exchange", self._place.round)
        return False

    def _exchange(self, update: Any) -> Exchange | Agreed | None:
        """Average with all peers in this round.

        Returns the exchange, perhaps a partial one; the state to download if the others have already moved on; None if there
        was no exchange.
        """
        best: Exchange | None = None
        for _ in range(_ATTEMPTS):
            beside = self._peers_in_round(self._watch.refresh())
            if beside < 2 and best is None:
                return None
            found = self._averager.exchange(
                update,
                place=f"{self._place.epoch} {self._state.hash}",
                weight=self.stats.samples,
                about={"samples": self.stats.samples},
                expects=beside,
            )
            if found is not None and found.is_whole:
                return found
            best = found or best
            ahead = self._agreed_by_others()
            if ahead is not None and ahead.hash != self._state.hash and ahead.place.epoch >= self._place.epoch:
                return ahead
        return best

    def _finish_round(self, update: Any, found: Exchange | None, seconds: float) -> None:
        limit = self._tracker.target_batch_size
        claims = [member.get("samples") for member in found.gathered.values()] if found else [self.stats.samples]
        self.samples += sum(min(max(c, 0), 2 * limit) for c in claims if isinstance(c, int))
        self._outer.sent()
        self._outer.apply(found.average if found else update)
        self._place, self._due_at = Place(self._place.rollbacks, self._place.round + 1), None
        self._ended_at = time.monotonic()
        self._state = self._capture_state()
        self.stats.close(found.receipt if found else None, seconds)
        self._warn_of_outliers()
        self._tracker.begin(self._place.epoch, round_samples(self.samples, self._settings))
        self._local_states.keep(self._state, self._place.rollbacks)
        self._follow_schedule()
        self._watch.notify()

    def _warn_of_outliers(self) -> None:
        names = {record.p2p: record.name or record.peer for record in self._seen_last()}
        for p2p in self.stats.receipt["odd"]:
            logger.warning(
                "shoal: round %d: the update of peer %s was an outlier", self._place.round, names.get(p2p, p2p)
            )

    # --- following the others ---

    def _other_state(self) -> Agreed | None:
        """Return the state to change to, if the others agree on another one. Returns None until new records arrive."""
        records = self._watch.records
        if records is self._seen:
            return None
        self._seen = records
        others, own = self._seen_last(), self._describe()
        goal = agreed([*others, own])
        if goal is None or goal.hash == own.state_hash:
            return None
        return goal if goal.place.epoch >= self._place.epoch or is_astray(own, goal, others) else None

    def _catch_up(self, goal: Agreed | None) -> bool:
        """Download and load the state the others agree on; return whether it worked. Repeats if they move on meanwhile."""
        silent: set[str] = set()
        for _ in range(_ATTEMPTS):
            if goal is None:
                return False
            for state in sources.from_peers(self._links.dht, self._settings.run_id, goal, self._seen_last(), silent):
                place = goal.place if state.hash == goal.hash else self._vouched(state.hash, silent)
                if place is not None and place.epoch >= goal.place.epoch:
                    self._load_state(state, place)
                    logger.info("shoal: loaded round %d of the swarm", self._place.round)
                    return True
                logger.info("shoal: discarded a download of round %d: too few peers report that state", state.round)
            goal = self._agreed_by_others(silent)
        return False

    def _agreed_by_others(self, silent: Container[str] = ()) -> Agreed | None:
        self._watch.refresh()
        return agreed(self._seen_last(silent), besides=1)

    def _vouched(self, state_hash: str, silent: Container[str]) -> Place | None:
        """Return the place of a downloaded state that is newer than our records; those need a moment to arrive."""
        for _ in range(_READS):
            self._watch.refresh()
            if (place := vouched(state_hash, self._seen_last(silent), besides=1)) is not None:
                return place
            time.sleep(_LAG_S)
        return None

    def _seen_last(self, silent: Container[str] = ()) -> list[Progress]:
        """Return the other peers' records, without those of `silent` peers, which may be dead."""
        own = self._links.peer
        return [r for r in self._watch.records.values() if r.peer != own and r.p2p not in silent]

    def _load_state(self, state: State, place: Place) -> None:
        self._load_tensors(dict(zip(state.names, state.tensors, strict=True)), place, state.samples)

    def _load_tensors(self, tensors: Mapping[str, Any], place: Place, samples: int) -> None:
        self._outer.load(tensors)
        self._place, self.samples, self._due_at = place, samples, None
        self._state = self._capture_state()
        self.stats.forget()
        with self._tracker.pause_updates():
            self._tracker.begin(place.epoch, round_samples(samples, self._settings))
        if self._schedule is not None:
            self._schedule.rewind(self.global_step)
        self._watch.notify()

    def _join(self) -> None:
        """Load the swarm's state; if there is no other peer, the server's or this peer's own last state."""
        deadline = time.monotonic() + _JOIN_S
        while (goal := self._agreed_by_others()) is not None:
            if (goal.hash, goal.place) == (self._state.hash, self._place) or self._catch_up(goal):
                return  # equal from the start, or downloaded
            time.sleep(1.0)
            if time.monotonic() > deadline:
                raise Unreachable(
                    "The swarm is training, but no peer sent its state.",
                    hint="try again later, or: shoal swarm doctor",
                )
        state = sources.from_server(self._settings)
        kept = (state, 0) if state is not None else self._local_states.newest()
        if kept is not None:
            self._load_state(kept[0], Place(kept[1], kept[0].round))

    def _follow_owner(self) -> bool:
        """Apply the owner's newest record; return whether a rollback has changed the model."""
        commands = self._watch.commands
        if commands is None or commands is self._commands_seen:
            return False
        self._commands_seen, self.stopped = commands, commands.stop
        self._averager.use_aggregation(commands.aggregation or self._settings.aggregation)
        rollback = commands.rollback
        if rollback is None or rollback.number <= self._place.rollbacks:
            return False
        state = self._local_states.of_round(rollback.to_round, rollback.hash)
        state = state or sources.from_server(self._settings, rollback.hash)
        if state is not None:
            logger.warning("shoal: rollback to round %d by the swarm's owner", rollback.to_round)
            self._load_state(state, Place(rollback.number, state.round))
            if self._optimizer is not None:
                self._optimizer.state.clear()  # its moments come from the steps that are undone
        return state is not None

    # --- published to other peers ---

    def _capture_state(self) -> State:
        tensors = self._outer.tensors()
        names = list(tensors)
        found = state_hash(names, list(tensors.values()))
        self._recent = dict([*self._recent.items(), (found, self._place.epoch)][-_RECENT:])
        return State(self._place.round, self.samples, self.stats.mean_loss, names, list(tensors.values()), found)

    def _peers_in_round(self, records: Mapping[str, Progress]) -> int:
        """Return the number of peers in the current round, with this one."""
        others = (record for record in records.values() if record.peer != self._links.peer)
        within_s, lag_s = self._settings.expiry_s, self._settings.matchmaking_s
        return 1 + count_beside(self._place, self._state.hash, self._recent, others, within_s=within_s, lag_s=lag_s)

    def _describe(self) -> Progress:
        return Progress(
            peer=self._links.peer,
            name=self._settings.peer_name,
            p2p=self._links.p2p,
            round=self._place.round,
            rollbacks=self._place.rollbacks,
            samples_per_s=float(self._tracker.performance_ema.samples_per_second),
            state_hash=self._state.hash,
            recent=self._recent,
            serves_state=not self._settings.client_mode,
            state="leaving" if self._left else "training",
            **self.stats.published(),
        )

    def _follow_schedule(self) -> None:
        if self._schedule is not None:
            self._schedule.follow(self.global_step)
