"""The uploader takes only files that were complete before a worker died."""

from __future__ import annotations

import io
import os
import time
import zipfile
from pathlib import Path

import pytest

from shoal.agent.data.checkpoint_uploader import SETTLE_S, CheckpointUploader


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
    uploader = CheckpointUploader(output, server, print)  # type: ignore[arg-type]
    write(output, "settled", SETTLE_S + 1)
    write(output, "being-written", 0.1)
    uploader.worker_failed()
    later = time.time() + 60
    monkeypatch.setattr("shoal.agent.data.checkpoint_uploader.time.time", lambda: later)
    uploader.scan(last=True)
    uploader.finish(all_well=False)
    assert server.names == ["settled"]


def test_when_all_ended_well_the_newest_is_taken_at_once(output):
    server = Server()
    uploader = CheckpointUploader(output, server, print)  # type: ignore[arg-type]
    write(output, "last", 0.0)
    uploader.finish(all_well=True)
    assert server.names == ["last"]


def zipped(value: bytes) -> bytes:
    """Return bytes in torch's format: a ZIP archive, whose directory is written last."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", value)
    return file.getvalue()


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        ({"ckpt.pt": zipped(b"weights")}, ["."]),
        ({"ckpt.pt": zipped(b"weights")[:-10]}, []),
        ({"ckpt.pt": b"an older format, of which the end shows nothing"}, []),
        ({"model.pt": zipped(b"weights"), "optimizer.pt": zipped(b"moments")}, []),
    ],
    ids=["whole", "cut short", "without an end", "two that must fit together"],
)
def test_one_whole_file_of_weights_written_just_before_a_death_is_taken(output, files, taken):
    server = Server()
    uploader = CheckpointUploader(output, server, print)  # type: ignore[arg-type]
    output.mkdir()
    for name, content in files.items():
        (output / name).write_bytes(content)
    uploader.worker_failed()
    uploader.finish(all_well=False)
    assert server.names == taken


def touch(output: Path, name: str, age_s: float, now: float) -> None:
    output.mkdir(exist_ok=True)
    (output / name).write_bytes(b"weights")
    os.utime(output / name, (now - age_s, now - age_s))


class Clock:
    """Both clocks of the uploader, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = time.time()
        for name in ("time", "monotonic"):
            monkeypatch.setattr(f"shoal.agent.data.checkpoint_uploader.time.{name}", lambda: self.now)


class Files(Server):
    def post(self, path: str, body: dict) -> dict:
        self.names.append(sorted(file["path"] for file in body["manifest"]["files"]))  # type: ignore[arg-type]
        return {"missing": []}


def test_weights_beside_a_log_that_never_rests_are_taken_without_it(output, monkeypatch):
    server, clock = Files(), Clock(monkeypatch)
    uploader = CheckpointUploader(output, server, print)  # type: ignore[arg-type]
    touch(output, "model_0.pt", 0.0, clock.now)
    for _ in range(20):
        clock.now += 1.0
        touch(output, "train.log", 0.0, clock.now)
        uploader.scan()
    assert server.names == [["model_0.pt"]], "once, after ten seconds"
    touch(output, "model_1.pt", 0.0, clock.now)
    for _ in range(15):
        clock.now += 1.0
        touch(output, "train.log", 0.0, clock.now)
        uploader.scan()
    assert server.names[1:] == [["model_0.pt", "model_1.pt"]]


def test_a_series_of_files_written_faster_than_they_settle_is_taken_up_to_the_newest_but_one(output, monkeypatch):
    server, clock = Files(), Clock(monkeypatch)
    uploader = CheckpointUploader(output, server, print)  # type: ignore[arg-type]
    for number in range(7):
        touch(output, f"model_{number}.pt", 0.0, clock.now)
        for _ in range(2):
            clock.now += 0.9
            uploader.scan()
    uploader.worker_failed()
    uploader.finish(all_well=False)
    assert server.names[-1] == [f"model_{number}.pt" for number in range(6)], "the newest may be cut off"


def test_weights_that_are_written_again_in_place_are_not_taken_in_part(output, monkeypatch):
    server, clock = Files(), Clock(monkeypatch)
    uploader = CheckpointUploader(output, server, print)  # type: ignore[arg-type]
    for _ in range(20):
        for name in ("model.pt", "optimizer.pt"):
            touch(output, name, 0.0, clock.now)
            clock.now += 1.1
            uploader.scan()
    clock.now += 2.5
    uploader.scan()
    touch(output, "model.pt", 0.0, clock.now)
    uploader.worker_failed()
    clock.now += 0.1
    uploader.finish(all_well=False)
    assert server.names in ([], [["model.pt", "optimizer.pt"]])
