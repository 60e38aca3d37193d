"""One exchange of a round: find the peers that are at the same place, average one flat vector with them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.core.errors import Unreachable
from shoal.swarm import wire
from shoal.swarm.codec import make_codec
from shoal.swarm.peer import settle_in
from shoal.swarm.reducing import GuardedAverager
from shoal.swarm.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.swarm.records import Reader

torch: Any = import_module("torch")
logger = logging.getLogger(__name__)

State = tuple[dict[str, Any], list[Any]]
"""Metadata and tensors for a peer that asks for our state."""
_WHOLE = 0.9999
_SLACK_S = 10.0
_SMALLEST_PART, _LARGEST_PART = 1 << 15, 1 << 19
"""Bytes: small models too are shared out among all peers, and the codebook of a part stays small beside it."""


def prefix_of(run_id: str) -> str:
    return f"{run_id}_rounds"


def served(state: wire.State) -> State:
    """A state as hivemind sends it."""
    about = {"round": state.round, "samples": state.samples, "loss": state.loss, "names": state.names}
    return {**about, "hash": state.hash}, state.tensors


@dataclass(frozen=True, slots=True)
class Exchange:
    average: Tensor
    gathered: Mapping[str, dict[str, Any]]
    """What each member of the group said of itself, by p2p id; ours included."""
    receipt: Mapping[str, Any]

    @property
    def is_whole(self) -> bool:
        return float(self.receipt.get("averaged", 0.0)) >= _WHOLE


class RoundAverager(GuardedAverager):
    """Its process dies with ours. `state` is asked, in a thread of our process, whenever a peer wants to download."""

    def __init__(self, size: int, dht: Any, settings: Settings, reader: Reader, state: Callable[[], State]):
        self._state = state
        self._settings = settings
        wait = settings.matchmaking_s
        super().__init__(
            [torch.zeros(size)],
            dht,
            aggregation=settings.aggregation,
            clip=settings.clip,
            reader=reader,
            prefix=prefix_of(settings.run_id),
            compression=make_codec(settings.compression),
            part_size_bytes=max(_SMALLEST_PART, min(_LARGEST_PART, size // 32)),
            min_matchmaking_time=wait,
            request_timeout=min(3.0, wait / 2),
            allreduce_timeout=settings.averaging_s,
            next_chunk_timeout=max(2.0, min(wait, settings.averaging_s / 4)),
            client_mode=settings.client_mode,
            shutdown_timeout=3.0,
            start=False,
        )

    def run(self) -> None:
        settle_in(self._parent_pid)
        # A round without a group is told by who called, in one line.
        logging.getLogger("hivemind.averaging.averager").setLevel(logging.CRITICAL)
        super().run()

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        """Under hivemind's own name, whichever class was asked first: others look for it there."""
        return f"{namespace}::DecentralizedAverager.{method_name}"

    def get_current_state(self) -> tuple[dict[str, Any], list[Any], None]:
        return (*self._state(), None)

    def exchange(
        self, update: Tensor, *, place: str, weight: float, about: Mapping[str, Any], expects: int
    ) -> Exchange | None:
        """Average with whoever is at the same place; None if nobody was found, or the exchange broke off.

        `expects`: with that many peers there is nobody left to wait for.
        """
        if not self.is_alive():
            raise Unreachable(
                "The process that talks to the swarm has died.", hint="start the script again: it rejoins"
            )
        with self.get_tensors() as (flat,):
            flat.copy_(update)
        settings = self._settings
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
        except Exception as error:  # of many kinds, some of them passed on from other processes
            logger.debug("shoal: no exchange: %s: %s", type(error).__name__, error)
            return None
        with self.get_tensors() as (flat,):
            average = flat.clone()
        return Exchange(
            average, {str(peer): told for peer, told in gathered.items() if isinstance(told, dict)}, self.receipt()
        )

    async def _step(self, **options: Any) -> None:
        """Peers at another place have another schema, and so are never in one group with us."""
        told = self.serializer.loads(self.serializer.loads(options["step"].data_for_gather)[2])
        mark = f"{told['place']}".encode()
        self._matchmaking.schema_hash = hashlib.blake2b(mark, key=self.schema_hash[:64], digest_size=20).digest()
        self._matchmaking.target_group_size = max(2, int(told["expects"]))
        await super()._step(**options)
