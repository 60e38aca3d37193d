"""What the keeper takes after a worker's death: only what had settled before."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from shoal.agent.keeper import SETTLE_S, Keeper


class Server:
    """Has every chunk already; remembers what was committed."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def post(self, path: str, body: dict) -> dict:
        assert path == "/checkpoints"
        self.names.append(body["name"])
        return {"missing": []}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


def write(output: Path, name: str, age_s: float) -> None:
    folder = output / name
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"weights")
    stamp = time.time() - age_s
    os.utime(folder / "model.bin", (stamp, stamp))


def test_after_a_death_time_that_passes_does_not_make_a_half_written_checkpoint_trusted(output, monkeypatch):
    server = Server()
    keeper = Keeper(output, server, print)  # type: ignore[arg-type]
    write(output, "settled", SETTLE_S + 1)
    write(output, "being-written", 0.1)
    keeper.worker_failed()
    later = time.time() + 60
    monkeypatch.setattr("shoal.agent.keeper.time.time", lambda: later)
    keeper.look(last=True)
    keeper.finish(all_well=False)
    assert server.names == ["settled"]


def test_when_all_ended_well_the_newest_is_taken_at_once(output):
    server = Server()
    keeper = Keeper(output, server, print)  # type: ignore[arg-type]
    write(output, "last", 0.0)
    keeper.finish(all_well=True)
    assert server.names == ["last"]
