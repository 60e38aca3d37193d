"""Signed records: who is believed, and who is not."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from shoal.swarm.records import (
    OWNER,
    OwnerCommands,
    Progress,
    Reader,
    Rollback,
    new_signing_key,
    public_of,
    seal,
    subkey_of,
    unseal,
)

RUN = "swarm_1-0"
NOW = 1_000_000.0
OWNER_KEY = new_signing_key()
ANNA, BEN = new_signing_key(), new_signing_key()
MEMBERS = {"peer_anna": public_of(ANNA), "peer_ben": public_of(BEN)}


def progress(peer: str = "peer_anna", **fields: Any) -> Progress:
    return Progress(**{"peer": peer, "p2p": f"Qm{peer}", "time": NOW, **fields})


def stored(record: Progress, key: str, *, run: str = RUN, until: float = NOW + 60) -> dict[str, bytes]:
    return {subkey_of(record.peer, public_of(key)): seal(record, run, key, until=until)}


def ordered(order: OwnerCommands, key: str = OWNER_KEY) -> dict[str, bytes]:
    return {subkey_of(OWNER, public_of(key)): seal(order, RUN, key, until=NOW + 600)}


@pytest.fixture
def reader() -> Reader:
    return Reader(RUN, owner_key=public_of(OWNER_KEY), members=MEMBERS, clock=lambda: NOW)


def test_what_a_member_signed_is_read_as_it_was_written(reader: Reader) -> None:
    written = progress(round=3, loss=12.5, mini_steps=5, samples=40, members=["Qmx"], odd=["Qmy"], state_hash="ab")
    read = reader.read_progress(stored(written, ANNA))["peer_anna"]
    assert read == written.model_copy(update={"until": NOW + 60})
    assert reader.admitted({"peer_anna": read}) == {"Qmpeer_anna"}


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_a_number_can_be_told(reader: Reader, loss: float) -> None:
    read = reader.read_progress(stored(progress(loss=loss), ANNA))["peer_anna"]
    assert repr(read.loss) == repr(loss)


def test_a_stranger_is_not_believed(reader: Reader) -> None:
    assert reader.read_progress(stored(progress("peer_eve"), new_signing_key())) == {}


def test_a_stranger_under_a_members_name_is_not_believed(reader: Reader) -> None:
    assert reader.read_progress(stored(progress("peer_anna"), new_signing_key())) == {}


def test_a_member_cannot_speak_for_another(reader: Reader) -> None:
    blob = seal(progress("peer_anna"), RUN, BEN, until=NOW + 60)
    assert reader.read_progress({subkey_of("peer_ben", public_of(BEN)): blob}) == {}
    assert reader.read_progress({subkey_of("peer_anna", public_of(ANNA)): blob}) == {}


def test_a_changed_byte_undoes_the_signature() -> None:
    (subkey, blob) = stored(progress(), ANNA).popitem()
    assert unseal(Progress, subkey, blob, RUN) is not None
    for at in range(0, len(blob), 7):
        changed = blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]
        assert unseal(Progress, subkey, changed, RUN) is None


def test_a_record_of_another_swarm_or_kind_is_not_ours(reader: Reader) -> None:
    assert reader.read_progress(stored(progress(), ANNA, run="swarm_1-1")) == {}
    (subkey, blob) = stored(progress(), ANNA).popitem()
    assert unseal(OwnerCommands, subkey, blob, RUN) is None


@pytest.mark.parametrize("times", [{"time": NOW + 3600}, {"until": NOW - 1}])
def test_records_out_of_time_are_dropped(reader: Reader, times: dict[str, float]) -> None:
    raw = stored(progress(time=times.get("time", NOW)), ANNA, until=times.get("until", NOW + 7200))
    assert reader.read_progress(raw) == {}


def test_an_older_record_put_back_is_dropped(reader: Reader) -> None:
    old, new = stored(progress(round=1, time=NOW - 20), ANNA), stored(progress(round=2, time=NOW - 10), ANNA)
    assert reader.read_progress(new)["peer_anna"].round == 2
    assert reader.read_progress(old) == {}


@pytest.mark.parametrize("junk", [None, b"", b"x" * 63, b"x" * 200, b"y" * (1 << 20), "text", 5, {"a": 1}])
def test_junk_is_dropped(reader: Reader, junk: Any) -> None:
    good = stored(progress(), ANNA)
    raw: dict[Any, Any] = {subkey_of("peer_ben", MEMBERS["peer_ben"]): junk, 7: junk, "no dot": junk, "a.zz": junk}
    assert set(reader.read_progress(raw | good)) == {"peer_anna"}


def test_well_signed_nonsense_is_dropped() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(ANNA))
    plain = json.loads(seal(progress(), RUN, ANNA, until=NOW + 60)[64:])
    subkey = subkey_of("peer_anna", public_of(ANNA))
    for change in (
        {"samples": -1},
        {"samples": 1.5},
        {"round": "3"},
        {"averaged": 2.0},
        {"name": "x" * 200},
        {"loss": []},
    ):
        body = json.dumps(plain | change).encode()
        blob = key.sign(b"\0".join((b"shoal swarm", b"progress", RUN.encode(), body))) + body
        assert unseal(Progress, subkey, blob, RUN) is None, change


def test_the_owner_says_who_is_a_member(reader: Reader) -> None:
    key = new_signing_key()
    raw = stored(progress("peer_cara"), key) | stored(progress(), ANNA)
    assert set(reader.read_progress(raw)) == {"peer_anna"}
    reader.read_commands(
        ordered(OwnerCommands(version=1, members={"peer_cara": public_of(key)}, banned=["peer_anna"], time=NOW))
    )
    assert set(reader.read_progress(raw)) == {"peer_cara"}


def test_orders_of_others_and_old_orders_do_not_hold(reader: Reader) -> None:
    stop = OwnerCommands(version=5, stop=True, time=NOW)
    assert reader.read_commands(ordered(stop, key=ANNA)) is None
    go = OwnerCommands(version=7, rollback=Rollback(number=1, to_round=4, hash="ab"), time=NOW)
    assert reader.read_commands(ordered(go)) == reader.commands
    assert reader.commands is not None and reader.commands.rollback == go.rollback
    reader.read_commands(ordered(stop))
    assert reader.commands is not None and reader.commands.version == 7
    reader.read_commands({})
    assert reader.commands is not None, "the owner's word holds while the owner is away"


def test_who_has_not_been_heard_of_for_a_while_is_not_lively() -> None:
    now = [NOW]
    reader = Reader(RUN, owner_key="", members=MEMBERS, clock=lambda: now[0])
    ben = stored(progress("peer_ben", time=NOW - 40), BEN)
    assert set(reader.lively(reader.read_progress(stored(progress(), ANNA) | ben))) == {"peer_anna"}
    now[0] += 20
    ben = stored(progress("peer_ben", time=NOW - 30), BEN)  # its clock is slow, but it lives
    found = reader.read_progress(stored(progress(), ANNA) | ben)
    assert set(reader.lively(found)) == {"peer_anna", "peer_ben"}
    now[0] += 20
    found = reader.read_progress(stored(progress(), ANNA) | ben)
    assert set(found) == {"peer_anna", "peer_ben"}
    assert set(reader.lively(found)) == {"peer_ben"}


def test_where_everybody_is_trusted_a_signature_is_enough() -> None:
    reader = Reader(RUN, owner_key="", trust="trusted", clock=lambda: NOW)
    found = reader.read_progress(stored(progress("peer_zed"), new_signing_key()))
    assert set(found) == {"peer_zed"}
    assert reader.admitted(found) is None


def test_a_thousand_false_names_do_not_hide_a_member(reader: Reader) -> None:
    key = new_signing_key()
    blob = seal(progress("peer_anna"), RUN, key, until=NOW + 60)
    raw = {subkey_of(f"peer_{n}", public_of(key)): blob for n in range(1000)} | stored(progress(), ANNA)
    assert set(reader.read_progress(raw)) == {"peer_anna"}
