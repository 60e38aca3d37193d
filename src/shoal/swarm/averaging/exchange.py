"""One exchange of a round: find the peers in the same round and average one flat vector with them.

Why it is safe: `exchange` is called by the training thread only, one call at a time. It copies the update into hivemind's
shared tensor under that tensor's lock and copies the average out in the same way; in between, the averager's process owns
it. `state` is called in a thread of the training process and must return values that do not change (see `rounds`). If the
averager's process dies during an exchange, the wait ends with an error or a time-out and the result is None; the next call
raises Unreachable.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.core.errors import Unreachable
from shoal.swarm.averaging import wire
from shoal.swarm.averaging.averagers import GuardedAverager
from shoal.swarm.averaging.codec import make_codec
from shoal.swarm.averaging.digests import Announced, SeenUpdates, digests
from shoal.swarm.peer import tie_to_parent
from shoal.swarm.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.swarm.records import Reader

torch: Any = import_module("torch")
logger = logging.getLogger(__name__)

State = tuple[dict[str, Any], list[Any]]
"""Metadata and tensors sent to a peer that downloads our state."""
_WHOLE = 0.9999
"""Share of averaged values from which an exchange counts as complete."""
_SLACK_S = 10.0
_SMALLEST_PART, _LARGEST_PART = 1 << 15, 1 << 19
"""Bytes of a part: large enough to outweigh the codebook, small enough to share a model among all peers."""
_PARTS = 16
"""Parts of a small model. Every peer reduces some of them, and so sees what the others send."""


def prefix_of(run_id: str) -> str:
    """Return the averager's DHT prefix of a run."""
    return f"{run_id}_rounds"


def part_size(size: int) -> int:
    """Return the bytes of one part of a vector of `size` values."""
    return max(min(_SMALLEST_PART, max(32, size // _PARTS)), min(_LARGEST_PART, size // 32))


def served(state: wire.State) -> State:
    """Return a state as the metadata and tensors that hivemind sends."""
    about = {"round": state.round, "samples": state.samples, "loss": state.loss, "names": state.names}
    return {**about, "hash": state.hash}, state.tensors


@dataclass(frozen=True, slots=True)
class Exchange:
    """Result of one exchange."""

    average: Tensor
    gathered: Mapping[str, dict[str, Any]]
    """p2p id → data that each member of the group sent about itself, with ours."""
    receipt: Mapping[str, Any]

    @property
    def is_whole(self) -> bool:
        """True if all values were averaged."""
        return float(self.receipt.get("averaged", 0.0)) >= _WHOLE


class RoundAverager(GuardedAverager):
    """Averager of one flat vector. Its process ends with ours.

    `state` is called in a thread of our process whenever a peer downloads our state.
    """

    def __init__(self, size: int, dht: Any, settings: Settings, reader: Reader, state: Callable[[], State]):
        self._state = state
        self._settings, self._seen_updates = settings, SeenUpdates()
        wait = settings.matchmaking_s
        part_bytes = part_size(size)
        # 16-bit values depend on how a vector is split, so their digests would differ at the receiver.
        self._part_values = {"int8": part_bytes, "none": part_bytes // 4}.get(settings.compression)
        super().__init__(
            [torch.zeros(size)],
            dht,
            aggregation=settings.aggregation,
            clip=settings.clip,
            reader=reader,
            prefix=prefix_of(settings.run_id),
            compression=make_codec(settings.compression),
            part_size_bytes=part_bytes,
            min_matchmaking_time=wait,
            request_timeout=min(3.0, wait / 2),
            allreduce_timeout=settings.averaging_s,
            next_chunk_timeout=max(2.0, min(wait, settings.averaging_s / 4)),
            client_mode=settings.client_mode,
            shutdown_timeout=3.0,
            start=False,
        )

    def run(self) -> None:
        tie_to_parent(self._parent_pid)
        # The caller logs a round without a group in one line.
        logging.getLogger("hivemind.averaging.averager").setLevel(logging.CRITICAL)
        super().run()

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        """Return the handle under hivemind's own class name, where the other peers call it."""
        return f"{namespace}::DecentralizedAverager.{method_name}"

    def get_current_state(self) -> tuple[dict[str, Any], list[Any], None]:
        return (*self._state(), None)

    def exchange(
        self, update: Tensor, *, place: str, weight: float, about: Mapping[str, Any], expects: int
    ) -> Exchange | None:
        """Average an update with the peers at the same place.

        Args:
            update: The flat vector to average.
            place: Round and state hash; only peers with an equal place form a group.
            weight: This peer's weight in the average.
            about: Data about this peer for the other members.
            expects: Group size at which matchmaking stops waiting.

        Returns None if no peer was found or the exchange failed. Raises Unreachable if the averager's process is dead.
        """
        if not self.is_alive():
            raise Unreachable(
                "The process that averages with the swarm has died.",
                hint="start the script again: it rejoins the swarm",
            )
        with self.get_tensors() as (flat,):
            flat.copy_(update)
        settings = self._settings
        if self._part_values is not None:
            about = {**about, "parts": digests(update, self._part_values)}
        find_s = 2 * settings.matchmaking_s
        try:
            control = self.step(
                gather={**about, "place": place, "expects": expects},
                weight=float(weight),
                timeout=find_s,
                allow_retries=False,
                wait=False,
            )
            gathered = control.result(timeout=find_s + settings.averaging_s + _SLACK_S)
        except Exception as error:  # many kinds, some of them from other processes
            logger.debug("shoal: no exchange: %s: %s", type(error).__name__, error)
            return None
        with self.get_tensors() as (flat,):
            average = flat.clone()
        return Exchange(
            average, {str(peer): sent for peer, sent in gathered.items() if isinstance(sent, dict)}, self.receipt()
        )

    def _announced(self, group_info: Any) -> Announced | None:
        if self._part_values is None:
            return None
        loads = self.serializer.loads
        sent = {str(p): loads(loads(data)[2]) for p, data in zip(group_info.peer_ids, group_info.gathered, strict=True)}
        return self._seen_updates.see(str(sent[str(self.peer_id)]["place"]), sent)

    async def _step(self, **options: Any) -> None:
        """Run a step with a schema hash that includes the place, so that peers at another place never join our group."""
        about = self.serializer.loads(self.serializer.loads(options["step"].data_for_gather)[2])
        mark = f"{about['place']}".encode()
        self._matchmaking.schema_hash = hashlib.blake2b(mark, key=self.schema_hash[:64], digest_size=20).digest()
        self._matchmaking.target_group_size = max(2, int(about["expects"]))
        await super()._step(**options)
