"""Access to the swarm's records in the DHT: writing, validation against forgery, and reading."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from hivemind.dht import DHT
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase

from shoal.swarm.records import OWNER, OwnerCommands, Progress, Reader, key_of, public_of, seal, subkey_of, unseal

LASTS_S = 60.0
"""Seconds until a record expires unless it is written again. A peer without a record has left."""
_FRESH_S = 1.0
"""Age of the admitted ids above which they are read again for an unknown peer."""
_STALE_S = 5.0
"""Age of the admitted ids above which they are read again in any case."""


class Validator(RecordValidatorBase):  # type: ignore[misc]
    """DHT validator of every node: it refuses to store or return a Shoal record that its author did not sign."""

    def __init__(self, run_id: str, owner_key: str):
        self._run_id, self._owner = run_id, subkey_of(OWNER, owner_key)
        self._progress, self._commands = (DHTID.generate(source=key_of(run_id, kind)).to_bytes() for kind in _KINDS)

    def validate(self, record: DHTRecord) -> bool:
        if record.key not in (self._progress, self._commands):
            return True
        try:
            subkey, blob = DHTProtocol.serializer.loads(record.subkey), DHTProtocol.serializer.loads(record.value)
        except Exception:  # msgpack raises many kinds on bytes from strangers
            return False
        if record.key == self._commands:
            found: Progress | OwnerCommands | None = unseal(OwnerCommands, subkey, blob, self._run_id)
            return found is not None and subkey == self._owner and _ends(found, record)
        found = unseal(Progress, subkey, blob, self._run_id)
        return found is not None and _ends(found, record)


class SwarmRecords:
    """Reads the swarm's records and publishes those of one author, a peer or the coordinator."""

    def __init__(self, dht: DHT, reader: Reader, *, signing_key: str):
        self._dht, self._reader = dht, reader
        self._signing_key, self._public_key = signing_key, public_of(signing_key)

    @property
    def reader(self) -> Reader:
        return self._reader

    def publish(self, record: Progress | OwnerCommands, *, lasts_s: float = LASTS_S) -> bool:
        """Sign a record and store it; return whether at least one node has stored it."""
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
        """Return the members' records by peer id. The owner's record is read first, because it names the members."""
        self.owner_commands()
        return self._reader.read_progress(_values(self._dht.get(key_of(self._reader.run_id, "progress"), latest=True)))

    def owner_commands(self) -> OwnerCommands | None:
        """Return the owner's newest record."""
        return self._reader.read_commands(_values(self._dht.get(key_of(self._reader.run_id, "order"), latest=True)))


class Admission:
    """Membership check inside an averager's process.

    It runs on that process's event loop only. Two concurrent reads are harmless: each replaces the whole set.
    """

    def __init__(self, dht: DHT, reader: Reader):
        self._dht, self._reader = dht, reader
        self._admitted: set[str] | None = set()
        self._read_at = float("-inf")

    async def refused(self, p2p_ids: list[str]) -> list[str]:
        """Return the ids that are not members. Unknown ids cause a fresh read, because they may have joined just now."""
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
        progress, commands = map(_values, found)
        self._reader.read_commands(commands)
        # An empty answer of the DHT is a failed read, not a swarm without members: keep the ids known so far.
        if (admitted := self._reader.admitted(self._reader.read_progress(progress))) or progress or admitted is None:
            self._admitted = admitted
        self._read_at = time.monotonic()


_KINDS: tuple[Any, Any] = ("progress", "order")


def validator(run_id: str, owner_key: str) -> Validator:
    return Validator(run_id, owner_key)


def _ends(record: Progress | OwnerCommands, stored: DHTRecord) -> bool:
    """Check whether the stored expiry is the signed one."""
    return bool(abs(record.until - stored.expiration_time) < 1e-3)


def _values(found: Any) -> Mapping[Any, Any]:
    """Return subkey → value of a DHT answer; an empty mapping if the answer is not a dictionary."""
    value = found.value if found is not None else None
    return {subkey: item.value for subkey, item in value.items()} if isinstance(value, dict) else {}
