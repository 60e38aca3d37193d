"""Every mesh against one process: loss curves, gradients that are clipped, and checkpoints of each loaded by each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import test_sharded_training as sharded
from marks import takes_minutes

from shoal.sdk.saving import layout
from shoal.sdk.saving.consolidate import consolidate
from shoal.sdk.saving.restore import read_file

pytestmark = [pytest.mark.integration, pytest.mark.torch]

MESHES: list[tuple[int, dict[str, int]]] = [
    (2, {"tp": 2}),
    (4, {"fsdp": 2, "tp": 2}),
    (4, {"ddp": 2, "tp": 2}),
    (2, {"cp": 2}),
    (4, {"cp": 2, "tp": 2}),
    (4, {"ddp": 2, "cp": 2}),
    (4, {"fsdp": 2, "cp": 2}),
    (4, {"ddp": 2, "fsdp": 2}),
    (4, {"fsdp": 4}),
    (8, {"ddp": 2, "fsdp": 2, "tp": 2}),
    (1, {}),
]


@takes_minutes
@pytest.mark.parametrize("kind", ["own", "gpt2", "llama"])
def test_each_mesh_goes_on_from_the_checkpoint_of_the_one_before(kind: str, tmp_path: Path) -> None:
    """One epoch on each mesh in turn is the same training as in one process."""
    settings: dict[str, Any] = {"hugging_face": kind} if kind != "own" else {}
    count = len(MESHES)
    assert sharded.start(tmp_path / "one", 1, epochs=count, **settings) == [0], (tmp_path / "one/log.0").read_text()
    one = sharded.outcome(tmp_path / "one", 1)
    expected = list(zip(sharded.losses(one), sharded.norms(one), strict=True))
    folder = tmp_path / "mesh"
    for epoch, (world, mesh) in enumerate(MESHES, 1):
        init = {"mesh": mesh} if mesh else {}
        codes = sharded.start(folder, world, init=init, epochs=epoch, **settings)
        assert codes == [0] * world, (mesh, (folder / "log.0").read_text())
        ranks = sharded.outcome(folder, world)
        found = list(zip(sharded.losses(ranks), sharded.norms(ranks), strict=True))
        assert found == [pytest.approx(pair, abs=1e-4) for pair in expected[2 * epoch - 2 : 2 * epoch]], mesh
    first, last = read_file(newest(folder), "model.pt"), read_file(newest(tmp_path / "one"), "model.pt")
    assert all((first[name] - last[name]).abs().max() < 1e-3 for name in last)


@takes_minutes
@pytest.mark.parametrize("mesh", [mesh for _, mesh in MESHES if mesh], ids=lambda mesh: "-".join(mesh))
def test_a_checkpoint_of_any_mesh_is_read_by_from_pretrained(mesh: dict[str, int], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    world = next(world for world, other in MESHES if other == mesh)
    codes = sharded.start(tmp_path, world, init={"mesh": mesh}, hugging_face="llama", empty=True, epochs=1)
    assert codes == [0] * world, (tmp_path / "log.0").read_text()
    consolidate(newest(tmp_path), tmp_path / "whole")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    saved = read_file(newest(tmp_path), "model.pt")
    assert all((value == saved[name]).all() for name, value in model.state_dict().items())


def newest(folder: Path) -> Path:
    return layout.saved_in(folder / "run/checkpoints")[0]
