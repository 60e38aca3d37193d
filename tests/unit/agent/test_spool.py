"""What was appended arrives once and in order, whatever is killed, full or set back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.agent.spool import Spool


def record(n: int) -> bytes:
    return json.dumps({"t": 1.0, "m": f"line {n}"}).encode()


def take(spool: Spool, max_bytes: int = 1 << 20) -> list[dict[str, Any]]:
    """Everything, acknowledged batch by batch."""
    out: list[dict[str, Any]] = []
    while (batch := spool.read(max_bytes)) is not None:
        lines = [json.loads(line) for line in batch.body.split(b"\n")]
        assert [r["s"] for r in lines] == list(range(batch.first, batch.first + batch.records))
        out += lines
        spool.ack(batch.first + batch.records)
    return out


def test_records_come_back_in_order_with_consecutive_numbers(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append([record(0), record(1)])
    spool.append([record(2)])
    assert [(r["s"], r["m"]) for r in take(spool)] == [(0, "line 0"), (1, "line 1"), (2, "line 2")]
    assert spool.empty and spool.read() is None


def test_a_batch_stays_below_its_size_and_a_record_above_it_travels_alone(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append([record(n) for n in range(100)])
    batch = spool.read(300)
    assert batch is not None and 0 < batch.records < 12
    spool.ack(batch.records)
    big = Spool(tmp_path / "big")
    big.append([json.dumps({"t": 0, "m": "x" * 5000}).encode(), record(1)])
    batch = big.read(100)
    assert batch is not None and batch.records == 1


def test_what_the_server_does_not_have_yet_is_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, synced, fsync = Spool(tmp_path), list[str](), os.fsync

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
    first = Spool(tmp_path, file_bytes=200)
    first.append([record(n) for n in range(10)])
    first.append([record(n) for n in range(10, 20)])
    batch = first.read(80)
    assert batch is not None
    first.ack(batch.records)
    second = Spool(tmp_path, file_bytes=200)
    got = take(second)
    assert [r["m"] for r in got][-20:] == [f"line {n}" for n in range(20)][-len(got) :]
    assert got[-1]["s"] == 19
    second.append([record(20)])
    assert [r["s"] for r in take(second)] == [20]


def test_acknowledged_files_are_deleted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, file_bytes=100)
    for n in range(50):
        spool.append([record(n)])
    assert len(list(tmp_path.glob("*.jsonl"))) > 5
    take(spool)
    assert len(list(tmp_path.glob("*.jsonl"))) == 1


def test_the_server_may_ask_to_go_back_or_be_ahead(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append([record(n) for n in range(10)])
    spool.ack(7)
    batch = spool.read()
    assert batch is not None and batch.first == 7
    spool.ack(3)
    batch = spool.read()
    assert batch is not None and (batch.first, batch.records) == (3, 7)


def test_a_server_set_back_before_the_oldest_record_gets_what_is_left_without_a_hole(tmp_path: Path) -> None:
    spool = Spool(tmp_path, file_bytes=100)
    for n in range(20):
        spool.append([record(n)])
    take(spool)
    spool.append([record(20)])
    spool.ack(5)
    got = take(spool)
    assert got[0]["s"] == 5 and got[-1]["m"] == "line 20"


def test_a_server_that_knows_more_than_is_left_gets_new_records_after_those(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append([record(0)])
    spool.ack(40)
    spool.append([record(1)])
    assert [(r["s"], r["m"]) for r in take(spool)] == [(40, "line 1")]


def test_above_its_cap_the_oldest_records_never_begun_give_way_to_a_notice_and_numbers_have_no_hole(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path, file_bytes=1000, cap_bytes=5000)
    for n in range(1000):
        spool.append([record(n)])
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 6000 + 200 * len(list(tmp_path.iterdir()))
    got = take(spool)
    assert [r["s"] for r in got] == list(range(len(got)))
    dropped = sum(r.get("dropped", 0) for r in got)
    assert dropped and dropped + sum("dropped" not in r for r in got) == 1000
    assert got[0]["m"] == "line 0" and got[-1]["m"] == "line 999"


def test_a_torn_last_line_is_ignored_and_what_follows_is_whole(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append([record(0), record(1)])
    spool.close()
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("ab") as f:
        f.write(b'{"t": 1.0, "m": "half a li')
    again = Spool(tmp_path)
    again.append([record(2)])
    assert [r["m"] for r in take(again)] == ["line 0", "line 1", "line 2"]


_WRITER = """
import json, sys
from pathlib import Path
from shoal.agent.spool import Spool
spool = Spool(Path(sys.argv[1]), file_bytes=20_000)
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
        got = take(Spool(folder, file_bytes=20_000))
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
    spool = Spool(tmp_path)
    spool.append([record(0)])
    fill(True)
    spool.append([record(1), record(2)])
    assert not spool.empty
    fill(False)
    spool.sync()
    again = Spool(tmp_path)  # it is on the disk now
    assert [(r["s"], r["m"]) for r in take(again)] == [(n, f"line {n}") for n in range(3)]


def test_what_a_full_disk_cannot_take_reaches_the_server_all_the_same(
    tmp_path: Path, fill: Callable[[bool], None]
) -> None:
    spool = Spool(tmp_path)
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
    assert [(r["s"], r["m"]) for r in take(Spool(tmp_path))][1:] == [(3, "line 3"), (4, "line 4")]


def test_what_neither_disk_nor_memory_can_take_is_counted_and_told_of(
    tmp_path: Path, fill: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.agent.spool.HELD_BYTES", 3 * len(record(0)))
    spool = Spool(tmp_path)
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
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        spool, written, server = Spool(Path(folder), file_bytes=120), 0, list[str]()
        for step in [*steps, "drain"]:
            if isinstance(step, int):
                spool.append([record(written + i) for i in range(step)])
                written += step
            elif step == "restart":
                spool.close()
                spool = Spool(Path(folder), file_bytes=120)
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
