"""Appended records arrive once and in order, whatever is killed, full or reset."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.agent.outbox.outbox import Outbox


def record(n: int) -> bytes:
    return json.dumps({"t": 1.0, "m": f"line {n}"}).encode()


def take(spool: Outbox, max_bytes: int = 1 << 20) -> list[dict[str, Any]]:
    """Everything, acknowledged batch by batch."""
    out: list[dict[str, Any]] = []
    while (batch := spool.read(max_bytes)) is not None:
        lines = [json.loads(line) for line in batch.body.split(b"\n")]
        assert [r["s"] for r in lines] == list(range(batch.first, batch.first + batch.records))
        out += lines
        spool.ack(batch.first + batch.records)
    return out


def test_records_come_back_in_order_with_consecutive_numbers(tmp_path: Path) -> None:
    spool = Outbox(tmp_path)
    spool.append([record(0), record(1)])
    spool.append([record(2)])
    assert [(r["s"], r["m"]) for r in take(spool)] == [(0, "line 0"), (1, "line 1"), (2, "line 2")]
    assert spool.empty and spool.read() is None


def test_a_batch_stays_below_its_size_and_a_record_above_it_travels_alone(tmp_path: Path) -> None:
    spool = Outbox(tmp_path)
    spool.append([record(n) for n in range(100)])
    batch = spool.read(300)
    assert batch is not None and 0 < batch.records < 12
    spool.ack(batch.records)
    big = Outbox(tmp_path / "big")
    big.append([json.dumps({"t": 0, "m": "x" * 5000}).encode(), record(1)])
    batch = big.read(100)
    assert batch is not None and batch.records == 1


def test_what_the_server_does_not_have_yet_is_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, synced, fsync = Outbox(tmp_path), list[str](), os.fsync

    def noted(fd: int) -> None:
        fsync(fd)
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    monkeypatch.setattr(os, "fsync", noted)
    spool.sync()
    assert synced == []
    spool.append([record(0)])
    spool.sync()
    spool.sync()
    assert synced == ["00000000-0.jsonl"]
    spool.append([record(1)])
    assert len(take(spool)) == 2
    spool.sync()
    assert len(synced) == 1, "the server has it all"


def test_what_was_not_acknowledged_is_read_again_by_the_next_process(tmp_path: Path) -> None:
    first = Outbox(tmp_path, file_bytes=200)
    first.append([record(n) for n in range(10)])
    first.append([record(n) for n in range(10, 20)])
    batch = first.read(80)
    assert batch is not None
    first.ack(batch.records)
    second = Outbox(tmp_path, file_bytes=200)
    got = take(second)
    assert [r["m"] for r in got][-20:] == [f"line {n}" for n in range(20)][-len(got) :]
    assert got[-1]["s"] == 19
    second.append([record(20)])
    assert [r["s"] for r in take(second)] == [20]


def test_acknowledged_files_are_deleted(tmp_path: Path) -> None:
    spool = Outbox(tmp_path, file_bytes=100)
    for n in range(50):
        spool.append([record(n)])
    assert len(list(tmp_path.glob("*.jsonl"))) > 5
    take(spool)
    assert len(list(tmp_path.glob("*.jsonl"))) == 1


def test_the_server_may_ask_to_go_back_or_be_ahead(tmp_path: Path) -> None:
    spool = Outbox(tmp_path)
    spool.append([record(n) for n in range(10)])
    spool.ack(7)
    batch = spool.read()
    assert batch is not None and batch.first == 7
    spool.ack(3)
    batch = spool.read()
    assert batch is not None and (batch.first, batch.records) == (3, 7)


def test_a_server_set_back_before_the_oldest_record_gets_what_is_left_without_a_hole(tmp_path: Path) -> None:
    spool = Outbox(tmp_path, file_bytes=100)
    for n in range(20):
        spool.append([record(n)])
    take(spool)
    spool.append([record(20)])
    spool.ack(5)
    got = take(spool)
    assert got[0]["s"] == 5 and got[-1]["m"] == "line 20"


def test_a_server_that_knows_more_than_is_left_gets_new_records_after_those(tmp_path: Path) -> None:
    spool = Outbox(tmp_path)
    spool.append([record(0)])
    spool.ack(40)
    spool.append([record(1)])
    assert [(r["s"], r["m"]) for r in take(spool)] == [(40, "line 1")]


def test_above_its_cap_the_oldest_records_never_begun_give_way_to_a_notice_and_numbers_have_no_hole(
    tmp_path: Path,
) -> None:
    spool = Outbox(tmp_path, file_bytes=1000, cap_bytes=5000)
    for n in range(1000):
        spool.append([record(n)])
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 6000 + 200 * len(list(tmp_path.iterdir()))
    got = take(spool)
    assert [r["s"] for r in got] == list(range(len(got)))
    dropped = sum(r.get("dropped", 0) for r in got)
    assert dropped and dropped + sum("dropped" not in r for r in got) == 1000
    assert got[0]["m"] == "line 0" and got[-1]["m"] == "line 999"


def test_a_torn_last_line_is_ignored_and_what_follows_is_whole(tmp_path: Path) -> None:
    spool = Outbox(tmp_path)
    spool.append([record(0), record(1)])
    spool.close()
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("ab") as f:
        f.write(b'{"t": 1.0, "m": "half a li')
    again = Outbox(tmp_path)
    again.append([record(2)])
    assert [r["m"] for r in take(again)] == ["line 0", "line 1", "line 2"]


_WRITER = """
import json, sys
from pathlib import Path
from shoal.agent.outbox.outbox import Outbox
spool = Outbox(Path(sys.argv[1]), file_bytes=20_000)
n = 0
while True:
    spool.append([json.dumps({"t": 1.0, "m": f"line {n + i}"}).encode() for i in range(7)])
    n += 7
    print(n, flush=True)
"""


@pytest.mark.integration
def test_kill_9_of_a_writer_loses_nothing_it_had_appended(tmp_path: Path) -> None:
    for round_ in range(3):
        folder = tmp_path / str(round_)
        child = subprocess.Popen([sys.executable, "-c", _WRITER, str(folder)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(200 + 50 * round_):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        said = int((child.stdout.read().split() or [b"0"])[-1]) or 7
        child.stdout.close()
        child.wait()
        got = take(Outbox(folder, file_bytes=20_000))
        assert len(got) >= said
        assert [r["m"] for r in got] == [f"line {n}" for n in range(len(got))]


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Fills the disk, or makes room on it."""
    real = os.write

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    yield lambda is_full: monkeypatch.setattr(os, "write", full if is_full else real)
    monkeypatch.setattr(os, "write", real)


def test_what_a_full_disk_cannot_take_is_kept_in_memory_until_there_is_room(
    tmp_path: Path, fill: Callable[[bool], None]
) -> None:
    spool = Outbox(tmp_path)
    spool.append([record(0)])
    fill(True)
    spool.append([record(1), record(2)])
    assert not spool.empty
    fill(False)
    spool.sync()
    again = Outbox(tmp_path)  # it is on the disk now
    assert [(r["s"], r["m"]) for r in take(again)] == [(n, f"line {n}") for n in range(3)]


def test_what_a_full_disk_cannot_take_reaches_the_server_all_the_same(
    tmp_path: Path, fill: Callable[[bool], None]
) -> None:
    spool = Outbox(tmp_path)
    spool.append([record(0)])
    fill(True)
    spool.append([record(1), record(2)])
    batch = spool.read()
    assert batch is not None and (batch.first, batch.records) == (0, 1)
    spool.ack(1)
    batch = spool.read()
    assert batch is not None and (batch.first, batch.records) == (1, 2)
    again = spool.read()  # the first try had no answer
    assert again == batch
    spool.ack(3)
    assert spool.empty
    fill(False)
    spool.append([record(3)])
    assert [(r["s"], r["m"]) for r in take(spool)] == [(3, "line 3")]
    spool.append([record(4)])
    # What was acknowledged before is still in the file, below the number the server expects.
    assert [(r["s"], r["m"]) for r in take(Outbox(tmp_path))][1:] == [(3, "line 3"), (4, "line 4")]


def test_what_neither_disk_nor_memory_can_take_is_counted_and_told_of(
    tmp_path: Path, fill: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.agent.outbox.outbox.HELD_BYTES", 3 * len(record(0)))
    spool = Outbox(tmp_path)
    spool.append([record(0)])
    fill(True)
    for n in range(1, 6):
        spool.append([record(n)])
    fill(False)
    spool.append([record(6)])
    got = take(spool)
    assert [r["s"] for r in got] == list(range(len(got)))
    assert got[0]["m"] == "line 0" and got[1]["dropped"] == 2
    assert [r["m"] for r in got[2:]] == ["line 3", "line 4", "line 5", "line 6"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 9), st.just("read"), st.just("ack"), st.just("restart")), max_size=40))
def test_any_order_of_appending_reading_acknowledging_and_restarting_loses_and_doubles_nothing(
    steps: list[Any],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spool, written, server = Outbox(Path(folder), file_bytes=120), 0, list[str]()
        for step in [*steps, "drain"]:
            if isinstance(step, int):
                spool.append([record(written + i) for i in range(step)])
                written += step
            elif step == "restart":
                spool.close()
                spool = Outbox(Path(folder), file_bytes=120)
            else:
                while (batch := spool.read(100)) is not None:
                    lines = [json.loads(line) for line in batch.body.split(b"\n")]
                    assert batch.first <= len(server)
                    server += [r["m"] for r in lines[len(server) - batch.first :]]
                    if step != "read":
                        spool.ack(len(server))
                    if step != "drain":
                        break
        assert server == [f"line {n}" for n in range(written)]
        assert spool.empty
        spool.close()


def test_records_acknowledged_while_the_disk_refuses_to_rename_are_kept_until_it_does(
    tmp_path: Path, fill: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the next answer of the server counted for records that it had never seen."""
    spool, server = Outbox(tmp_path), list[str]()
    fill(True)
    spool.append([record(n) for n in range(3)])
    monkeypatch.setattr(Path, "rename", lambda path, to: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    (tmp_path / "00000000-0.jsonl").touch()
    with pytest.raises(OSError, match="Input/output"):
        deliver(spool, server, ack=True, everything=True)
    spool.append([record(n) for n in range(3, 6)])
    monkeypatch.setattr(Path, "rename", _rename)
    deliver(spool, server, ack=True, everything=True)
    assert server == [f"line {n}" for n in range(6)] and spool.empty


def test_a_part_of_a_record_left_by_a_failed_write_is_cut_off_before_the_next_write(tmp_path: Path) -> None:
    disk = SickDisk(["open", "none", "short", "ftruncate"])
    with patch("shoal.agent.outbox.outbox.os", disk):
        spool = Outbox(tmp_path)
        disk.is_sick = True
        spool.append([record(0)])  # the file cannot even be opened
        spool.append([record(1)])  # a half of both is written, and cannot be cut off
        disk.is_sick = False
        spool.append([record(2)])
        assert [r["m"] for r in take(spool)] == ["line 0", "line 1", "line 2"]
        spool.close()


class SickDisk:
    """Stands in for `os` in the outbox: of its writes, truncations, opens, renames and removals, those that are due fail."""

    def __init__(self, faults: list[str]):
        self._faults, self.is_sick, self._was_short = faults, False, False

    def _fails(self, what: str) -> bool:
        return self.is_sick and (self._faults.pop(0) if self._faults else "all") in (what, "all")

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, fd: int, data: bytes) -> int:
        if not self._was_short and self._fails("short"):
            self._was_short = True
            return os.write(fd, data[: len(data) // 2])
        if self._was_short or self._fails("write"):
            self._was_short = False
            raise OSError(28, "No space left on device")
        return os.write(fd, data)

    def ftruncate(self, fd: int, size: int) -> None:
        if self._fails("ftruncate"):
            raise OSError(5, "Input/output error")
        os.ftruncate(fd, size)

    def open(self, *args: Any) -> int:
        if self._fails("open"):
            raise OSError(30, "Read-only file system")
        return os.open(*args)

    def rename(self, path: Path, to: Path) -> Path:
        if self._fails("rename"):
            raise OSError(5, "Input/output error")
        return _rename(path, to)

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        if self._fails("unlink"):
            raise OSError(5, "Input/output error")
        _unlink(path, missing_ok=missing_ok)


_rename, _unlink = Path.rename, Path.unlink
FAULTS = ["write", "short", "ftruncate", "open", "rename", "unlink", "none"]


@settings(max_examples=int(os.environ.get("SHOAL_SEQUENCES", 150)), deadline=None)
@given(
    st.lists(st.one_of(st.integers(1, 9), st.sampled_from(["read", "ack", "restart", "sick", "well"])), max_size=40),
    st.lists(st.sampled_from(FAULTS), max_size=60),
)
def test_a_disk_on_which_any_operation_may_fail_loses_and_doubles_nothing(steps: list[Any], faults: list[str]) -> None:
    """Nothing is lost but by the end of a process that could not write; nothing is doubled at all."""
    disk = SickDisk(faults)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("shoal.agent.outbox.outbox.os", disk),
        patch.object(Path, "unlink", lambda path, missing_ok=False: disk.unlink(path, missing_ok)),
        patch.object(Path, "rename", lambda path, to: disk.rename(path, to)),
    ):
        spool, written, server = Outbox(Path(folder), file_bytes=120), 0, list[str]()
        for step in [*steps, "well", "drain"]:
            if isinstance(step, int):
                spool.append([record(written + i) for i in range(step)])
                written += step
            elif step in ("sick", "well"):
                disk.is_sick = step == "sick"
            elif step == "restart":
                if not spool._held and not disk.is_sick:
                    spool.close()
                    spool = Outbox(Path(folder), file_bytes=120)
            else:
                with suppress(OSError):  # the shipping thread tries again
                    deliver(spool, server, ack=step != "read", everything=step == "drain")
        assert server == [f"line {n}" for n in range(written)]
        assert spool.empty
        spool.close()
        disk.is_sick = False


def deliver(spool: Outbox, server: list[str], *, ack: bool, everything: bool) -> None:
    for _ in range(1000):
        if (batch := spool.read(100)) is None:
            return
        lines = [json.loads(line) for line in batch.body.split(b"\n")]
        if batch.first > len(server):  # out of sequence
            spool.ack(len(server))
            continue
        server += [r["m"] for r in lines[len(server) - batch.first :]]
        if ack:
            spool.ack(len(server))
        if not everything:
            return
    raise AssertionError("the same records are read for ever")
