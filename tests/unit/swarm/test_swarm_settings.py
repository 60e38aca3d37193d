"""Settings of a peer: checked, with one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.core.errors import UsageError
from shoal.swarm.settings import Settings, data_seed, gather_settings, round_samples


def settings(**more: object) -> Settings:
    return Settings.of({"run_id": "test", "target_batch_size": 10, **more})


def test_rounds_are_short_at_first_and_grow_with_what_was_done_up_to_their_full_length():
    told = settings(local_steps=50, first_steps=5, growth=0.1)
    lengths = [round_samples(done, told) // 10 for done in (0, 10 * 49, 10 * 100, 10 * 300, 10 * 10**6)]
    assert lengths == [5, 5, 10, 30, 50]


def test_rounds_never_exceed_local_steps():
    assert round_samples(0, settings(local_steps=2, first_steps=5)) == 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "fast"),
        ("compression", "zip"),
        ("target_batch_size", 0),
        ("local_steps", True),
        ("outer_momentum", 1.0),
        ("run_id", "a.b"),
        ("matchmaking_s", float("nan")),
    ],
)
def test_a_wrong_value_is_named(name: str, value: object):
    with pytest.raises(UsageError, match=name):
        settings(**{name: value})


def test_without_a_target_there_is_a_next_command():
    with pytest.raises(UsageError) as caught:
        Settings.of({"run_id": "test"})
    assert "shoal swarm join" in str(caught.value.hint)


def ticket(folder: Path) -> Path:
    about = {
        "swarm": "s", "run_id": "s-1", "peer": "peer_1", "peer_name": "box", "target_batch_size": 64, "state_dir": "x",
        "server": "http://127.0.0.1:1", "token": "t", "signing_key": "00" * 32, "owner_key": "00" * 32, "local_steps": 9,
    }  # fmt: skip
    path = folder / "ticket.json"
    path.write_text(json.dumps(about))
    return path


def test_the_ticket_is_read_and_the_script_may_add_to_it(tmp_path: Path):
    env = {"SHOAL_SWARM": str(ticket(tmp_path))}
    found = gather_settings({"refresh_s": 0.1}, env)
    assert found is not None and (found.run_id, found.local_steps, found.refresh_s) == ("s-1", 9, 0.1)
    assert gather_settings({}, {}) is None


def test_keys_do_not_show(tmp_path: Path):
    found = gather_settings({}, {"SHOAL_SWARM": str(ticket(tmp_path))})
    assert "00" * 32 not in repr(found).replace(repr(getattr(found, "owner_key", "")), "")


def test_peers_read_in_orders_of_their_own_and_the_same_peer_in_the_same():
    one, other = settings(peer="peer_1"), settings(peer="peer_2")
    assert data_seed(one) != data_seed(other)
    assert data_seed(one) == data_seed(settings(peer="peer_1"))
