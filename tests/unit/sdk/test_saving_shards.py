"""Sharded checkpoints in one process: what is split off, read back in other pieces, listed, and put into one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shoal.agent.data.completeness import facts, problem  # noqa: E402
from shoal.core.errors import NotFound, Refused  # noqa: E402
from shoal.sdk.compare import compare  # noqa: E402
from shoal.sdk.saving import layout, restore  # noqa: E402
from shoal.sdk.saving.archive import write_archive  # noqa: E402
from shoal.sdk.saving.configs import hugging_face_files  # noqa: E402
from shoal.sdk.saving.consolidate import consolidate  # noqa: E402
from shoal.sdk.saving.parts import Places, Writing, find_places  # noqa: E402
from shoal.sdk.saving.shards import Piece, Shards, Split, is_marker, make_index, split, write_part  # noqa: E402

pytestmark = pytest.mark.torch


class Alone:
    """The messages of the only rank."""

    def gather(self, number: str, own: Any, patience_s: float) -> list[Any]:
        return [own]

    def store_complete(self, number: str, text: str) -> None: ...


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    head = torch.randn(70, 300, generator=generator)
    moment = torch.randn(70, 300, generator=generator)
    optimizer = {
        "state": {0: {"exp_avg": moment, "step": torch.tensor(3.0)}},
        "param_groups": [{"lr": 0.1, "params": [0]}],
    }
    model = {
        "head": head,
        "tied": head,
        "half": torch.randn(3, 5, 7, generator=generator).bfloat16(),
        "count": torch.tensor(4),
    }
    return {"model.pt": model, "optimizer.pt": [optimizer]}


def save(directory: Path, step: int = 7, **training: Any) -> Path:
    directory.mkdir(exist_ok=True)
    files = state()
    cut = split(files, {"model.pt": {"tied": "head"}}, is_main=True)
    writing = Writing(step, f"{step}-0", "abcd", cut.kept(), {"torch": torch.zeros(2)}, {"step": step})
    path = writing.write(
        {"part": cut.mine(), "state.pt": cut.skeleton, "training.pt": {"schedulers": [], **training}},
        Places(directory, (0,), 0),
        Alone(),  # type: ignore[arg-type]
    )
    assert path is not None
    return path


def test_what_comes_back_is_what_was_saved(tmp_path: Path) -> None:
    path, files = save(tmp_path / "out"), state()
    said = layout.verify(path)
    assert layout.is_sharded(said) and not (path / "model.pt").exists()
    assert not list(tmp_path.glob("out/.tmp*"))
    model, (optimizer,) = restore.read_file(path, "model.pt"), restore.read_file(path, "optimizer.pt")
    assert list(model) == list(files["model.pt"]) and model["head"] is model["tied"]
    assert all(torch.equal(model[name], value) for name, value in files["model.pt"].items())
    assert torch.equal(optimizer["state"][0]["exp_avg"], files["optimizer.pt"][0]["state"][0]["exp_avg"])
    assert optimizer["param_groups"] == files["optimizer.pt"][0]["param_groups"]
    assert restore.read_file(path, "model-1.pt") is None


def test_thousands_of_step_counters_are_not_tensors_of_their_own() -> None:
    cut = split(state(), {}, is_main=True)
    assert sorted(cut.pieces) == [
        "model.count",
        "model.half",
        "model.head",
        "model.tied",
        "optimizer.0.state.0.exp_avg",
    ]
    assert is_marker(cut.skeleton["model.pt"]["half"])
    assert float(cut.skeleton["optimizer.pt"][0]["state"][0]["step"]) == 3.0


@pytest.mark.parametrize("cuts", [[(0, 2), (2, 5), (5, 9)], [(0, 9)]])
@pytest.mark.parametrize("dim", [0, 1])
def test_pieces_are_read_into_other_pieces(cuts: list[tuple[int, int]], dim: int, tmp_path: Path) -> None:
    whole = torch.arange(81, dtype=torch.float64).reshape(9, 9)
    parts = []
    for rank, (start, end) in enumerate(cuts):
        piece = whole.narrow(dim, start, end - start).contiguous()
        offsets = (start, 0) if dim == 0 else (0, start)
        cut = Split({}, {"w": Piece(piece, (9, 9), offsets, True, True)}, {})
        parts.append(write_part(tmp_path / f"__{rank}_0.distcp", cut.mine(), cut))
    shards = Shards(tmp_path, make_index(parts, {}))
    marker = {"__shard__": "w"}
    assert torch.equal(shards.whole(marker), whole)
    turned = torch.zeros(9, 9, dtype=torch.float32).t()
    shards.fill(marker, turned)
    assert torch.equal(turned.double(), whole), "into another type and order of memory"
    with pytest.raises(ValueError, match="shape"):
        shards.fill(marker, torch.zeros(8, 9))
    if len(parts) > 1:
        with pytest.raises(Refused, match="not written all of w"):
            make_index(parts[:-1], {})
        (tmp_path / "__1_0.distcp").unlink()
        with pytest.raises(Refused, match=r"__1_0\.distcp"):
            shards.whole(marker)


def test_a_part_of_another_node_is_listed_but_not_missed_here(tmp_path: Path) -> None:
    path = save(tmp_path / "out")
    said = json.loads((path / "shoal.json").read_text())
    said["elsewhere"] = {"__1_0.distcp": {"size": 5, "blake2b": "00"}}
    (path / "shoal.json").write_text(json.dumps(said))
    files = sorted(p.name for p in path.iterdir())
    assert problem(path, files) is None
    assert facts(path.name, path, files)["lacks"] == ["__1_0.distcp"]
    with pytest.raises(ValueError, match=r"__1_0\.distcp"):
        layout.verify(path)


def test_ranks_that_see_the_folder_of_rank_0_use_it(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "a", tmp_path / "b", tmp_path / "b"]
    for rank, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        (folder / f".rank-s-{rank}").touch()
    seen: list[Any] = []

    def gather(value: Any) -> list[Any]:
        seen.append(value)
        return [str(folders[0])] * 4 if isinstance(value, str) else [0, 0, 0, 0]

    assert find_places(folders[3], 3, "s", gather).directory == folders[0]
    (folders[0] / ".rank-s-0").unlink()
    (folders[3] / ".rank-s-3").touch()
    assert find_places(folders[3], 3, "s", gather).directory == folders[3]
    assert seen[-1] == 2, "the first rank that writes there leads"


def test_one_file_holds_the_weights_once_with_the_configuration(tmp_path: Path) -> None:
    from safetensors import safe_open

    class Config:
        def to_json_string(self) -> str:
            return json.dumps({"model_type": "x", "architectures": None})

    class Own(torch.nn.Linear):  # type: ignore[misc]
        config = Config()

    configs = {"model.pt": hugging_face_files(Own(1, 1))}
    whole = tmp_path / "step-000000009"
    whole.mkdir()
    files = {**state(), "training.pt": {"schedulers": [], "configs": configs}}
    listed = {name: write_archive(whole / name, value) for name, value in files.items()}
    layout.write_about(whole, {"step": 9, "files": listed})
    for path, folder in ((save(tmp_path / "out", configs=configs), "one"), (whole, "two")):
        done = consolidate(path, tmp_path / folder)
        assert done["files"] == ["config.json", "model.safetensors"]
        assert json.loads((tmp_path / folder / "config.json").read_text())["architectures"] == ["Own"]
        with safe_open(tmp_path / folder / "model.safetensors", "pt") as found:
            assert sorted(found.keys()) == ["count", "half", "head"]
            for name in found.keys():  # noqa: SIM118
                assert torch.equal(found.get_tensor(name), state()["model.pt"][name])
    with pytest.raises(Refused, match="exists already"):
        consolidate(whole, tmp_path / "one")
    with pytest.raises(NotFound):
        consolidate(tmp_path, tmp_path / "three")


def test_two_sharded_checkpoints_are_compared_by_their_values(tmp_path: Path) -> None:
    first, second = save(tmp_path / "a"), save(tmp_path / "b")
    found = compare(first, second)
    assert found["equal"] and set(found["files"]) == {"model.pt", "optimizer.pt", "training.pt"}
