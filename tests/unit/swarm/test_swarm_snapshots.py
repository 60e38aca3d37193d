"""A state as a folder: what is read is what was written, or nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shoal.core.errors import Corrupt
from shoal.testing.extras import needs

pytestmark = needs("hivemind")


@pytest.fixture(autouse=True, scope="module")
def _imports() -> None:
    global snapshots, State, state_hash
    from shoal.swarm import snapshots
    from shoal.swarm.wire import State, state_hash


def state() -> State:
    tied = torch.randn(3, 2)
    tensors = {
        "model/head.weight": tied,
        "model/body.weight": tied,
        "model/steps": torch.tensor(7),
        "model/half": torch.randn(5).bfloat16(),
        "outer/momentum/head.weight": torch.randn(3, 2),
    }
    names = list(tensors)
    return State(4, 640, 1.5, names, list(tensors.values()), state_hash(names, list(tensors.values())))


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    written = state()
    folder = snapshots.write(tmp_path / "round-4", written, fingerprint="abc")
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "outer.safetensors", "swarm.json"]
    read = snapshots.read(folder)
    assert (read.round, read.samples, read.loss, read.names, read.hash) == (4, 640, 1.5, written.names, written.hash)
    assert all(torch.equal(a, b) for a, b in zip(read.tensors, written.tensors, strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["round-4"]


def test_a_second_write_takes_the_place_of_the_first(tmp_path: Path) -> None:
    snapshots.write(tmp_path / "s", state())
    second = state()
    snapshots.write(tmp_path / "s", second)
    assert snapshots.read(tmp_path / "s").hash == second.hash


@pytest.mark.parametrize("name", ["model.safetensors", "outer.safetensors", "swarm.json"])
def test_damage_is_noticed(tmp_path: Path, name: str) -> None:
    folder = snapshots.write(tmp_path / "s", state())
    data = bytearray((folder / name).read_bytes())
    data[-6] ^= 0xFF
    (folder / name).write_bytes(data)
    with pytest.raises(Corrupt):
        snapshots.read(folder)
    (folder / name).unlink()
    with pytest.raises(Corrupt):
        snapshots.read(folder)


def test_the_hash_is_of_names_shapes_types_and_values() -> None:
    plain = torch.zeros(4)
    base = state_hash(["a"], [plain])
    assert state_hash(["a"], [plain.clone()]) == base
    others = [
        state_hash(["b"], [plain]),
        state_hash(["a"], [plain.view(2, 2)]),
        state_hash(["a"], [torch.zeros(4, dtype=torch.int32)]),
        state_hash(["a"], [torch.tensor([0.0, 0.0, 0.0, -0.0])]),
    ]
    assert len({base, *others}) == 5
