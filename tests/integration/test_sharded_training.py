"""Sharded checkpoints of real ranks: each writes its part, any number of ranks resumes, and a killed save is never seen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import parallel_models as models
import pytest
import torch

from shoal.core.ports import free_port
from shoal.sdk.saving import layout
from shoal.sdk.saving.consolidate import consolidate
from shoal.sdk.saving.restore import read_file
from shoal.testing.forks import Fork
from shoal.testing.patience import patient

pytestmark = [pytest.mark.integration, pytest.mark.torch]

WORKER = Path(__file__).with_name("sharded_worker.py")
FSDP = {"parallel": "fsdp", "checkpoint_every": 2}


def start(folder: Path, world: int, *, apart: bool = False, **settings: Any) -> list[int]:
    """Run the ranks to their end, and return their exit codes. If one dies, the others are killed, as a launcher does.

    `apart`: every rank has folders of its own, as on different nodes.
    """
    port, ranks = free_port(), []
    settings = {"dir": str(folder / "run"), "out": str(folder / "out"), "apart": apart, **settings}
    folder.mkdir(exist_ok=True)
    for rank in range(world):
        env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if apart:
            env |= {"SHOAL_SPOOL": folder / f"node{rank}/spool", "OUTPUT_DIR": folder / f"node{rank}/checkpoints"}
        with (folder / f"log.{rank}").open("a") as log:
            command = [sys.executable, WORKER, json.dumps(settings)]
            ranks.append(Fork(command, env=os.environ | {k: str(v) for k, v in env.items()}, stdout=log, stderr=log))
    dies = settings.get("dies")
    try:
        if dies is not None:
            ranks[dies].wait(patient(120))
            for rank in ranks:
                rank.kill()
        return [rank.wait(patient(120)) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def outcome(folder: Path, world: int) -> list[dict[str, Any]]:
    return [torch.load(folder / f"out.{rank}", weights_only=False) for rank in range(world)]


def losses(ranks: list[dict[str, Any]]) -> list[float]:
    """Return the mean loss of each step over the ranks."""
    return [
        sum(values) / len(ranks) for values in zip(*([loss for loss, _ in r["losses"]] for r in ranks), strict=True)
    ]


def norms(ranks: list[dict[str, Any]]) -> list[float]:
    return [norm for _, norm in ranks[0]["losses"]]


def samples(ranks: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Return the samples of each step."""
    found: dict[int, list[int]] = {}
    for rank in ranks:
        for step, indices in rank["seen"]:
            found.setdefault(step, []).extend(indices)
    return {step: sorted(indices) for step, indices in found.items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One process, nothing sharded."""
    folder = tmp_path_factory.mktemp("plain")
    assert start(folder, 1) == [0], (folder / "log.0").read_text()
    return outcome(folder, 1)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks that nothing happened to."""
    folder = tmp_path_factory.mktemp("unbroken")
    assert start(folder, 2, init=FSDP) == [0, 0], (folder / "log.0").read_text()
    return folder


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks that saved steps 2 and 4; the second died in the middle of the save of step 6."""
    folder = tmp_path_factory.mktemp("broken")
    codes = start(folder, 2, init=FSDP, dies=1, in_save_of=6)
    assert codes == [-signal.SIGKILL] * 2, (folder / "log.1").read_text()
    return folder


def test_every_rank_writes_its_part_and_trains_as_one_process_does(unbroken: Path, plain: Any) -> None:
    ranks = outcome(unbroken, 2)
    assert losses(ranks) == pytest.approx(losses(plain), abs=2e-5)
    assert norms(ranks) == pytest.approx(norms(plain), abs=2e-5)
    assert samples(ranks) == samples(plain)
    newest = layout.saved_in(unbroken / "run/checkpoints")[0]
    layout.verify(newest)
    sizes = [(newest / f"__{rank}_0.distcp").stat().st_size for rank in range(2)]
    assert max(sizes) < 1.02 * min(sizes), "each has half of the weights and averages"
    assert not (newest / "model.pt").exists()


def test_a_rank_killed_in_the_middle_of_a_save_leaves_nothing_torn(broken: Path) -> None:
    found = layout.saved_in(broken / "run/checkpoints")
    assert [path.name for path in found] == [layout.name_of(4), layout.name_of(2)]
    for path in found:
        layout.verify(path)


@pytest.mark.parametrize(
    ("world", "init"),
    [
        pytest.param(2, FSDP, id="as-many"),
        pytest.param(3, FSDP, id="more"),
        pytest.param(1, {}, id="one-process"),
        pytest.param(4, {"mesh": {"ddp": 2, "fsdp": 2}}, id="replicas"),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tensors"),
    ],
)
def test_any_number_of_ranks_goes_on_from_the_parts(
    world: int, init: dict[str, Any], broken: Path, unbroken: Path, tmp_path: Path
) -> None:
    shutil.copytree(broken / "run", tmp_path / "run")
    assert start(tmp_path, world, init=init) == [0] * world, (tmp_path / "log.0").read_text()
    ranks, whole = outcome(tmp_path, world), outcome(unbroken, 2)
    together = 2 if "tp" in init.get("mesh", {}) else 1
    assert samples(ranks[::together]) == {step: used for step, used in samples(whole).items() if step > 4}
    assert losses(ranks) == pytest.approx(losses(whole)[4:], abs=2e-5)
    assert norms(ranks) == pytest.approx(norms(whole)[4:], abs=2e-5)
    if init == FSDP and world == 2:
        for rank, other in zip(ranks, whole, strict=True):
            assert all(map(torch.equal, rank["held"], other["held"])), "not the same bits"
    if (
        "mesh" in init
    ):  # copies, of parts or of what is not divided, of a part take turns to write it, none is written twice
        newest = layout.saved_in(tmp_path / "run/checkpoints")[0]
        parts = sum(path.stat().st_size for path in newest.glob("*.distcp"))
        before = sum(path.stat().st_size for path in layout.saved_in(unbroken / "run/checkpoints")[0].glob("*.distcp"))
        # Fewer tensors are divided by tp than by fsdp, and each part has a header of its own.
        assert parts <= before * 1.05 if "tp" in init["mesh"] else parts == pytest.approx(before, rel=0.05)


def test_parts_become_one_file_and_torch_reads_them_too(unbroken: Path, plain: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_model
    from torch.distributed import checkpoint as dcp

    newest = layout.saved_in(unbroken / "run/checkpoints")[0]
    done = consolidate(newest, tmp_path / "whole")
    assert done["files"] == ["model.safetensors"]
    model = models.GPT()
    load_model(model, tmp_path / "whole" / "model.safetensors")
    for param, expected in zip(model.parameters(), plain[0]["held"], strict=True):
        torch.testing.assert_close(param.detach(), expected, atol=2e-5, rtol=1e-4)
    other = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    dcp.load({"model": other}, checkpoint_id=newest)
    whole = read_file(newest, "model.pt")
    for name, value in model.state_dict().items():
        assert torch.equal(value, other[name]) and torch.equal(value, whole[name]), name


@pytest.mark.parametrize("case", ["own-weights", "weights-from-files", "bf16"])
def test_a_model_made_without_memory_trains_as_in_one_process(case: str, unbroken: Path, tmp_path: Path) -> None:
    """Every block gets its weights when it is sharded. Its activations are computed again in the backward pass."""
    settings: dict[str, Any] = {"empty": True, "epochs": 2}
    if case != "own-weights":
        newest = layout.saved_in(unbroken / "run/checkpoints")[0]
        consolidate(newest, tmp_path / "whole")
        settings["weights"] = str(tmp_path / "whole")
    kind = {"activation_checkpointing": "full" if case == "own-weights" else "selective"}
    kind |= {"precision": "bf16"} if case == "bf16" else {}
    assert start(tmp_path / "one", 1, **settings) == [0], (tmp_path / "one/log.0").read_text()
    codes = start(tmp_path / "two", 2, init={"parallel": "fsdp", **kind}, **settings)
    assert codes == [0, 0], (tmp_path / "two/log.0").read_text()
    one, two = outcome(tmp_path / "one", 1), outcome(tmp_path / "two", 2)
    close = 2e-2 if case == "bf16" else 2e-5
    assert losses(two) == pytest.approx(losses(one), abs=close)
    assert norms(two) == pytest.approx(norms(one), abs=close)
    assert sum(param.numel() for param in two[1]["held"]) < 0.55 * sum(param.numel() for param in one[0]["held"])
    first = torch.load(unbroken / "out.0", weights_only=False)["losses"]
    assert case == "own-weights" or losses(one)[0] < first[0][0] - 0.2, "it did not start from the trained weights"


def test_parts_in_the_folders_of_two_nodes_are_one_checkpoint(unbroken: Path, tmp_path: Path) -> None:
    assert start(tmp_path, 2, apart=True, init={**FSDP, "keep_checkpoints": 1}) == [0, 0], (
        tmp_path / "log.0"
    ).read_text()
    first, second = (layout.saved_in(tmp_path / f"node{node}/checkpoints") for node in (0, 1))
    said = layout.about(first[0])
    (part,) = said["elsewhere"]
    assert {path.name for path in second[0].iterdir()} == {part}
    assert first[0].name == second[0].name and len(first) == 1 and len(second) <= 2, "older ones are removed on both"
    assert [path.name for path in second[0].parent.iterdir() if path.name.startswith(".")] == []
    with pytest.raises(ValueError, match="cannot be read"):
        layout.verify(first[0])
    shutil.copy(second[0] / part, first[0] / part)  # as on the nodes of the next attempt
    layout.verify(first[0])
    expected = read_file(layout.saved_in(unbroken / "run/checkpoints")[0], "model.pt")
    assert all(torch.equal(value, expected[name]) for name, value in read_file(first[0], "model.pt").items())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_hugging_face_model_of_parts_is_loaded_by_from_pretrained(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    shown = start(
        tmp_path, 2, init={"parallel": "fsdp", "activation_checkpointing": "full"}, hugging_face=kind, empty=True
    )
    assert shown == [0, 0], (tmp_path / "log.0").read_text()
    newest = layout.saved_in(tmp_path / "run/checkpoints")[0]
    done = consolidate(newest, tmp_path / "whole")
    assert {"config.json", "model.safetensors"} <= set(done["files"])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert type(model) is type(models.hf_model(kind))
    saved = read_file(newest, "model.pt")
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
