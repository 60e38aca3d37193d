"""The swarm's records in the DHT: written, refused where forged, read by whoever holds the owner's public key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from hivemind.dht import DHT
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase

from shoal.swarm.records import OWNER, Order, Progress, Reader, key_of, public_of, seal, subkey_of, unseal

LASTS_S = 60.0
"""How long a record lives unless it is written again: a peer that says nothing for so long is gone."""
_FRESH_S = 1.0
_STALE_S = 5.0


class Validator(RecordValidatorBase):  # type: ignore[misc]
    """Installed in every node: nobody stores, or is shown, a record of ours that its author did not sign."""

    def __init__(self, run_id: str, owner_key: str):
        self._run_id, self._owner = run_id, subkey_of(OWNER, owner_key)
        self._progress, self._order = (DHTID.generate(source=key_of(run_id, kind)).to_bytes() for kind in _KINDS)

    def validate(self, record: DHTRecord) -> bool:
        if record.key not in (self._progress, self._order):
            return True
        try:
            subkey, blob = DHTProtocol.serializer.loads(record.subkey), DHTProtocol.serializer.loads(record.value)
        except Exception:  # of msgpack, on bytes from anywhere
            return False
        if record.key == self._order:
            found: Progress | Order | None = unseal(Order, subkey, blob, self._run_id)
            return found is not None and subkey == self._owner and _ends(found, record)
        found = unseal(Progress, subkey, blob, self._run_id)
        return found is not None and _ends(found, record)


class Book:
    """One peer's (or the keeper's) hand in the records."""

    def __init__(self, dht: DHT, reader: Reader, *, signing_key: str):
        self._dht, self._reader = dht, reader
        self._signing_key, self._public_key = signing_key, public_of(signing_key)

    @property
    def reader(self) -> Reader:
        return self._reader

    def publish(self, record: Progress | Order, *, lasts_s: float = LASTS_S) -> bool:
        """Whether some node has it."""
        until, run_id = time.time() + lasts_s, self._reader.run_id
        return bool(
            self._dht.store(
                key_of(run_id, record.kind),
                subkey=subkey_of(record.author, self._public_key),
                value=seal(record, run_id, self._signing_key, until=until),
                expiration_time=until,
            )
        )

    def progress(self) -> dict[str, Progress]:
        """Of members, by peer id; the owner's order is read first, since it says who is one."""
        self.order()
        return self._reader.take_progress(_values(self._dht.get(key_of(self._reader.run_id, "progress"), latest=True)))

    def order(self) -> Order | None:
        return self._reader.take_order(_values(self._dht.get(key_of(self._reader.run_id, "order"), latest=True)))


class Admission:
    """Who may average with us, asked inside an averager's process."""

    def __init__(self, dht: DHT, reader: Reader):
        self._dht, self._reader = dht, reader
        self._admitted: set[str] | None = set()
        self._read_at = float("-inf")

    async def refused(self, p2p_ids: list[str]) -> list[str]:
        """Looked up again if it is long ago, or for those not known, who may have come just now."""
        await self._read(older_than_s=_STALE_S)
        if self._strangers(p2p_ids):
            await self._read(older_than_s=_FRESH_S)
        return self._strangers(p2p_ids)

    def _strangers(self, p2p_ids: list[str]) -> list[str]:
        return [] if self._admitted is None else [found for found in p2p_ids if found not in self._admitted]

    async def _read(self, *, older_than_s: float) -> None:
        if time.monotonic() - self._read_at < older_than_s:
            return
        run_id = self._reader.run_id
        found = await asyncio.gather(
            *(self._dht.get(key_of(run_id, kind), latest=True, return_future=True) for kind in _KINDS)
        )
        progress, order = map(_values, found)
        self._reader.take_order(order)
        if (admitted := self._reader.admitted(self._reader.take_progress(progress))) or progress or admitted is None:
            self._admitted = admitted
        self._read_at = time.monotonic()


_KINDS: tuple[Any, Any] = ("progress", "order")


def validator(run_id: str, owner_key: str) -> Validator:
    return Validator(run_id, owner_key)


def _ends(record: Progress | Order, stored: DHTRecord) -> bool:
    return bool(abs(record.until - stored.expiration_time) < 1e-3)


def _values(found: Any) -> Mapping[Any, Any]:
    """Of what the DHT gives: a mapping of subkeys, or something that is none of ours."""
    value = found.value if found is not None else None
    return {subkey: item.value for subkey, item in value.items()} if isinstance(value, dict) else {}
