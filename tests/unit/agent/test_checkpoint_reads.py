"""When a script counts as one that ignores its checkpoint."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.data import checkpoint_reads
from shoal.agent.data.checkpoint_reads import CheckpointReads, ReadWatch, watch


class Watch:
    """A watch that reports what a test says."""

    is_read = is_closed = False

    def was_read(self) -> bool:
        assert not self.is_closed
        return self.is_read

    def close(self) -> None:
        self.is_closed = True


class Script:
    """A script's progress, a clock, and the warnings about it."""

    def __init__(self) -> None:
        self.now, self.step, self.said, self.kernel = 0.0, None, list[str](), Watch()
        kernel: Any = self.kernel
        self.reads = CheckpointReads(
            kernel, "ckpt_1", lambda: None if self.step is None else {"step": self.step}, self.said.append,
            clock=lambda: self.now,
        )  # fmt: skip

    def at(self, now: float, step: int | None) -> None:
        self.now, self.step = now, step
        self.reads.poll()


@pytest.fixture
def script() -> Script:
    return Script()


def test_steps_without_a_read_are_named_once(script: Script) -> None:
    script.at(0, None)
    script.at(600, None)  # it prepares for long
    script.at(601, 1)
    script.at(605, 50)
    script.at(612, 2)
    assert script.said == [] and not script.kernel.is_closed, "many steps at once, or a long one, may precede loading"
    script.at(613, 51)
    script.at(700, 90)
    script.reads.finish(well=True)
    (text,) = script.said
    assert "ckpt_1 is at /input-checkpoint, but the script has not read it by step 51" in text
    assert script.kernel.is_closed


@pytest.mark.parametrize(("well", "step", "told"), [(True, None, 1), (False, 7, 1), (False, None, 0), (True, 7, 1)])
def test_the_end_tells_unless_the_script_failed_before_it_trained(
    script: Script, well: bool, step: int | None, told: int
) -> None:
    script.step = step  # type: ignore[assignment]
    script.reads.finish(well=well)
    assert len(script.said) == told and script.kernel.is_closed


def test_one_read_settles_it(script: Script) -> None:
    script.at(1, 1)
    script.kernel.is_read = True
    script.at(2, 2)
    assert script.kernel.is_closed
    script.at(100, 100)
    script.reads.finish(well=True)
    assert script.said == []


def test_files_are_read_by_opening_not_by_listing_or_writing(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_text("a")
    (tmp_path / "b.pt").write_text("b")
    one = ReadWatch({tmp_path: {"a.pt"}})
    try:
        list(tmp_path.iterdir())
        (tmp_path / "b.pt").read_text()
        assert not one.was_read()
        (tmp_path / "a.pt").read_text()
        assert one.was_read() and not one.was_read()
        (tmp_path / "a.pt").write_text("new")
        assert not one.was_read()
    finally:
        one.close()


@pytest.mark.parametrize("way", ["in place", "by a rename"])
def test_reads_after_the_script_wrote_its_own_weights_are_those_of_the_upload(tmp_path: Path, way: str) -> None:
    restored = tmp_path / "ckpt.pt"
    restored.write_text("weights of the attempt before")
    reads = ReadWatch({tmp_path: {"ckpt.pt"}})
    (tmp_path / "log.txt").write_text("epoch 0")
    assert not reads.was_read()
    if way == "in place":
        restored.write_text("weights of this attempt")
    else:
        (tmp_path / "new").write_text("weights of this attempt")
        (tmp_path / "new").rename(restored)
    restored.read_text()
    assert not reads.was_read()
    reads.close()


def test_a_log_that_is_written_first_does_not_hide_the_read(tmp_path: Path) -> None:
    (tmp_path / "ckpt.pt").write_text("weights")
    reads = ReadWatch({tmp_path: {"ckpt.pt"}})
    (tmp_path / "log.txt").write_text("epoch 0")
    (tmp_path / "ckpt.pt").read_text()
    assert reads.was_read()
    reads.close()


def test_where_the_kernel_refuses_nothing_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    watch("ckpt_1", tmp_path / "gone", {tmp_path / "no": {"a"}}, lambda: None, said.append).finish(well=True)

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(checkpoint_reads, "ReadWatch", refuse)
    reads = watch("ckpt_1", tmp_path, {}, lambda: None, said.append)
    reads.poll()
    reads.finish(well=True)
    assert said == []
