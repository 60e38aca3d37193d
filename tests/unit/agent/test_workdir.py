"""Checkpoints in the working directory: what the job wrote, and only what looks like state."""

from __future__ import annotations

import os
import time
from pathlib import Path

from shoal.agent.data.checkpoint_uploader import CheckpointUploader, listed
from shoal.agent.data.workdir_checkpoints import Workdir

SOURCE = {"train.py", "pretrained.pt", "config.json"}


def workdir(root: Path) -> Workdir:
    for name in SOURCE:
        (root / name).write_text("came with the source")
        os.utime(root / name, ns=(1000, 1000))
    return Workdir(root, SOURCE, 2000)


def write(root: Path, path: str, text: str = "x", age_s: float = 0.0) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    stamp = time.time() - age_s
    os.utime(root / path, (stamp, stamp))


def found(seen: Workdir) -> dict[str, list[str]]:
    return {c.name: [path for path, _, _ in c.files] for c in seen.candidates()}


def test_a_source_as_it_came_is_no_checkpoint(tmp_path: Path) -> None:
    seen = workdir(tmp_path)
    write(tmp_path, "__pycache__/train.cpython-311.pyc")
    write(tmp_path, "notes.txt")
    assert found(seen) == {}


def test_files_of_weights_and_the_small_ones_beside_them_are_one(tmp_path: Path) -> None:
    seen = workdir(tmp_path)
    for path in ("snapshot.pt", "last_epoch.txt", "train.log", "metrics.csv", "helper.py", "config.json"):
        write(tmp_path, path)
    write(tmp_path, "words.txt", "x" * 100_000)
    assert found(seen) == {"workdir": ["last_epoch.txt", "snapshot.pt"]}


def test_a_file_of_the_source_that_the_job_overwrote_is_its_own(tmp_path: Path) -> None:
    seen = workdir(tmp_path)
    write(tmp_path, "pretrained.pt", "trained on")
    assert found(seen) == {"workdir": ["pretrained.pt"]}


def test_each_folder_with_weights_is_one_with_all_its_files(tmp_path: Path) -> None:
    seen = workdir(tmp_path)
    for path in ("out/ckpt.pt", "out/vocab.json", "hf/checkpoint-5/pytorch_model.bin", "hf/checkpoint-5/README.md"):
        write(tmp_path, path)
    for path in ("data/train.pt", "data/train.bin", "wandb/model.pt", ".cache/model.pt", "tokens/train.bin"):
        write(tmp_path, path)
    assert found(seen) == {
        "workdir/out": ["ckpt.pt", "vocab.json"],
        "workdir/hf": ["checkpoint-5/README.md", "checkpoint-5/pytorch_model.bin"],
    }


def test_tensors_in_many_files_are_data_which_is_said_once(tmp_path: Path) -> None:
    seen = workdir(tmp_path)
    for n in range(101):
        write(tmp_path, f"features/{n}.pt")
    assert found(seen) == {}
    assert "features" in (seen.warning() or "")
    assert found(seen) == {} and seen.warning() is None


class Server:
    """Has every chunk already; remembers what was committed."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str]] = []

    def post(self, path: str, body: dict) -> dict:
        self.taken.append((body["name"], body["facts"]["place"]))
        return {"missing": []}


def test_what_was_put_back_is_taken_again_only_once_it_has_changed(tmp_path: Path) -> None:
    source, output, server = tmp_path / "source", tmp_path / "output", Server()
    source.mkdir()
    seen = workdir(source)
    write(source, "snapshot.pt", "epoch 3", age_s=60)
    write(output, "step-3/model.pt", "3", age_s=60)
    write(output, "latest", "step-3", age_s=60)
    present = {one.name: one.files for one in listed(output, seen)}
    uploader = CheckpointUploader(output, server, print, workdir=seen, present=present)  # type: ignore[arg-type]
    uploader.scan(settle_s=0.0, last=True)
    assert server.taken == []
    write(source, "snapshot.pt", "epoch 4", age_s=9)
    write(output, "step-4/model.pt", "4", age_s=8)
    uploader.scan(settle_s=0.0, last=True)
    assert sorted(server.taken) == [("step-4", "output"), ("workdir", "workdir")]


def test_what_a_callback_linked_into_the_output_directory_is_kept_once(tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    source.mkdir()
    seen = workdir(source)
    write(source, "elsewhere/checkpoint-20/model.safetensors", "weights")
    (output / "checkpoint-20").mkdir(parents=True)
    os.link(source / "elsewhere/checkpoint-20/model.safetensors", output / "checkpoint-20/model.safetensors")
    assert [c.name for c in listed(output, seen)] == ["checkpoint-20"]
    write(source, "elsewhere/checkpoint-40/model.safetensors", "more weights")
    assert [c.name for c in listed(output, seen)] == ["checkpoint-20", "workdir/elsewhere"]
