"""A state as a folder: what is read is what was written, or nothing is."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from shoal.core import durable
from shoal.core.errors import Corrupt
from shoal.testing.extras import needs

pytestmark = needs("hivemind")


@pytest.fixture(autouse=True, scope="module")
def _imports() -> None:
    global states, State, state_hash
    from shoal.swarm import states
    from shoal.swarm.averaging.wire import State, state_hash


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
    folder = states.write(tmp_path / "round-4", written, fingerprint="abc")
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "outer.safetensors", "swarm.json"]
    read = states.read(folder)
    assert (read.round, read.samples, read.loss, read.names, read.hash) == (4, 640, 1.5, written.names, written.hash)
    assert all(torch.equal(a, b) for a, b in zip(read.tensors, written.tensors, strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["round-4"]


def test_a_second_write_takes_the_place_of_the_first(tmp_path: Path) -> None:
    states.write(tmp_path / "s", state())
    second = state()
    states.write(tmp_path / "s", second)
    assert states.read(tmp_path / "s").hash == second.hash


@pytest.mark.parametrize("name", ["model.safetensors", "outer.safetensors", "swarm.json"])
def test_damage_is_noticed(tmp_path: Path, name: str) -> None:
    folder = states.write(tmp_path / "s", state())
    data = bytearray((folder / name).read_bytes())
    data[-6] ^= 0xFF
    (folder / name).write_bytes(data)
    with pytest.raises(Corrupt):
        states.read(folder)
    (folder / name).unlink()
    with pytest.raises(Corrupt):
        states.read(folder)


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


def test_a_crash_while_a_state_is_replaced_leaves_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """The end of the process."""

    remove = states.shutil.rmtree

    def remove_and_die(path: Path, **options: bool) -> None:
        had = Path(path).exists()
        remove(path, **options)
        if had:
            raise Killed

    first, second = state(), state()
    folder = states.write(tmp_path / "s", first)
    monkeypatch.setattr(states.shutil, "rmtree", remove_and_die)
    with contextlib.suppress(Killed):
        states.write(folder, second)
    monkeypatch.undo()
    assert states.read(folder).hash in (first.hash, second.hash)


def test_a_state_is_replaced_also_where_folders_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "_exchange", lambda one, other: False)
    first, second = state(), state()
    folder = states.write(tmp_path / "s", first)
    states.write(folder, second)
    assert states.read(folder).hash == second.hash
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
