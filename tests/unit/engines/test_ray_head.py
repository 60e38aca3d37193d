"""Start of Ray: always with a token, never more open than necessary, and nowhere if it is not installed."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import pytest

from shoal.core.errors import MissingExtra, Refused
from shoal.core.settings import Layout
from shoal.engines.ray import daemon
from shoal.engines.ray.head import Head


def options(**more: object) -> argparse.Namespace:
    known = {"head": False, "join": None, "address": None, "port": 1, "dashboard_port": 2, "machine": "m", "slots": 3}
    return argparse.Namespace(**known | more)


def test_authentication_is_forced_whatever_the_environment_says() -> None:
    assert daemon.ENVIRONMENT["RAY_AUTH_MODE"] == "token"


def test_the_heads_dashboard_listens_on_loopback() -> None:
    argv = daemon.ray_argv(options(head=True, address="10.0.0.1"), Path("/t"))
    assert {"--head", "--dashboard-host=127.0.0.1", "--node-ip-address=10.0.0.1"} <= set(argv)


def test_a_machine_says_its_name_and_slots_and_offers_ray_nothing_else() -> None:
    argv = daemon.ray_argv(options(join="10.0.0.1:1"), Path("/t"))
    assert '--resources={"machine:m": 1, "shoal_slot": 3}' in argv
    assert {"--address=10.0.0.1:1", "--num-cpus=0", "--num-gpus=0"} <= set(argv)


def test_rays_sockets_fit_into_what_the_kernel_takes() -> None:
    short, long = Path("/Users/a/.shoal/ray"), Path("/Users/a-user-with-a-very-long-name/data/shoal/server/ray")
    assert daemon.temp_dir(short).is_relative_to(short)
    assert daemon.temp_dir(long) == daemon.temp_dir(long) != daemon.temp_dir(long / "other")
    for folder in (short, long):
        deepest = daemon.temp_dir(folder) / "session_2026-12-31_23-59-59_123456_1234567" / "sockets" / "plasma_store.10"
        assert len(str(deepest)) <= 107


def test_there_is_nothing_to_join_before_the_first_machine(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        Head(Layout(tmp_path)).ensure()
    assert caught.value.hint == "shoal pool add user@host"


def test_without_ray_the_way_to_get_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra) as caught:
        Head(Layout(tmp_path)).ensure("127.0.0.1")
    assert caught.value.hint == "pip install 'shoal-train[ray]'"


def test_stopping_what_does_not_run_is_fine(tmp_path: Path) -> None:
    Head(Layout(tmp_path)).stop()
    assert daemon.stop(tmp_path) == 0
