"""Putting checkpoints back: copies of the job's own, in the place they came from, or nothing at all."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.data.restore import Donor, put_back
from shoal.agent.node.workdir import WorkDir
from shoal.agent.wire import PutBack
from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.errors import InvalidSpec
from shoal.store.hashing import chunk_hash


def manifest(**files: str) -> Manifest:
    entries = []
    for path, text in files.items():
        chunk = Chunk(hash=chunk_hash(text.encode()), size=len(text))
        entries.append(FileEntry(path=path.replace("__", "/"), size=len(text), chunks=[chunk]))
    return Manifest(files=entries)


class Chunks:
    """Manifests by id, and the content of their chunks."""

    def __init__(self, manifests: dict[str, Manifest], *texts: str):
        self._manifests, self._texts = manifests, {chunk_hash(t.encode()): t.encode() for t in texts}
        self.asked = 0

    def manifest(self, manifest_id: str) -> Manifest:
        return self._manifests[manifest_id]

    def get(self, name: str) -> bytes:
        self.asked += 1
        return self._texts[name]


def item(name: str, place: str = "output") -> PutBack:
    return PutBack({"id": "ckpt_1", "name": name, "place": place, "manifest_id": "m"})


@pytest.fixture
def work(tmp_path: Path) -> WorkDir:
    work = WorkDir(tmp_path / "work")
    (work.root / "source").mkdir()
    return work


def test_a_copy_of_the_mounted_checkpoint_can_be_written_without_changing_it(tmp_path: Path, work: WorkDir) -> None:
    cached = tmp_path / "cache"
    cached.mkdir()
    (cached / "model.pt").write_text("weights")
    (cached / "model.pt").chmod(0o444)
    chunks: Any = Chunks({"m": manifest(**{"model.pt": "weights"})})
    said = put_back([item("step-5")], work, chunks, Donor(cached, manifest(**{"model.pt": "weights"})))
    mine = work.root / "output-checkpoint/step-5/model.pt"
    assert said == ["checkpoint ckpt_1 was restored to /output-checkpoint/step-5"] and chunks.asked == 0
    with mine.open("r+") as file:
        file.write("BROKEN!")
    assert (cached / "model.pt").read_text() == "weights" and mine.stat().st_ino != (cached / "model.pt").stat().st_ino


def test_what_differs_from_the_mounted_one_comes_from_the_store(tmp_path: Path, work: WorkDir) -> None:
    chunks: Any = Chunks({"m": manifest(rank__own="mine")}, "mine")
    put_back([item(".")], work, chunks, Donor(tmp_path, manifest(rank__own="of node 0")))
    assert (work.root / "output-checkpoint/rank/own").read_text() == "mine"


def test_files_of_the_working_directory_replace_those_of_the_source(work: WorkDir) -> None:
    (work.source / "snapshot.pt").write_text("as it came")
    chunks: Any = Chunks({"m": manifest(**{"snapshot.pt": "epoch 3"})}, "epoch 3")
    assert put_back([item("workdir", "workdir")], work, chunks) == [
        "checkpoint ckpt_1 was restored to the working directory"
    ]
    assert (work.source / "snapshot.pt").read_text() == "epoch 3"
    assert "out in the working directory" in put_back([item("workdir/out", "workdir")], work, chunks)[0]
    assert (work.source / "out/snapshot.pt").read_text() == "epoch 3"


def test_on_a_full_disk_nothing_half_is_left_and_it_is_said(work: WorkDir) -> None:
    class Full(Chunks):
        def get(self, name: str) -> bytes:
            if self.asked == 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().get(name)

    chunks: Any = Full({"m": manifest(a="a", b="b")}, "a", "b")
    (work.source / "a").write_text("as it came")
    put_back([item("workdir", "workdir")], work, chunks)
    assert (work.source / "a").read_text() == "as it came", "a file of the source stays"
    chunks.asked = 0
    warned: list[str] = []
    (said,) = put_back([item("step-1")], work, chunks, say=warned.append)
    assert said == "checkpoint ckpt_1 could not be restored to /output-checkpoint/step-1: No space left on device"
    assert warned == [f"[shoal] {said}"]
    assert [p for p in (work.root / "output-checkpoint").rglob("*") if p.is_file()] == []


def test_no_name_leads_out_of_its_place(work: WorkDir) -> None:
    chunks: Any = Chunks({"m": manifest(a="a")}, "a")
    with pytest.raises(InvalidSpec):
        put_back([item("../elsewhere")], work, chunks)
    with pytest.raises(InvalidSpec):
        put_back([item("workdir/../../elsewhere", "workdir")], work, chunks)
