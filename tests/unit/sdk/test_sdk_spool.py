import errno
import json
import logging
import os
import shutil
import threading
import time

import pytest

from shoal.sdk import spool as spool_module
from shoal.sdk.context import read_context
from shoal.sdk.spool import Spool, quoted
from shoal.testing.patience import patient


def put(spool, step, values, now):
    """A step, on disk before the flusher comes by."""
    spool.write_step(step, values, now)
    spool.flush()


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def spool(tmp_path, clock):
    spool = Spool(read_context("t", tmp_path / "run", {}), clock=clock)
    yield spool
    spool.close()


def records(spool):
    return [json.loads(line) for line in spool.path.read_bytes().splitlines()]


def test_a_step_is_one_line_with_time_number_and_values(spool):
    put(spool, 7, {"loss": 0.25, "n": 3}, 12.3456)
    assert records(spool) == [{"t": 12.346, "n": 0, "k": "s", "i": 7, "v": {"loss": 0.25, "n": 3}}]


def test_numbers_survive_exactly(spool):
    values = {"a": 0.1 + 0.2, "b": 5e-324, "c": 1.7976931348623157e308, "d": -0.0, "e": 2**80}
    put(spool, 1, values, 0.0)
    assert records(spool)[0]["v"] == values


def test_not_a_number_and_infinity_are_quoted(spool):
    values = {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "n": 1.0}
    put(spool, 1, values, 0.0)
    assert records(spool)[0]["v"] == {"a": "nan", "b": "inf", "c": "-inf", "n": 1.0}
    assert quoted({**values, "text": "x"}) == {"a": "nan", "b": "inf", "c": "-inf", "n": 1.0, "text": "x"}


@pytest.mark.parametrize("name", ['q"uote', "back\\slash", "new\nline", "Übung/损失", "", "{}", "%s"])
def test_any_text_can_be_a_metric_name(spool, name):
    put(spool, 1, {name: 1.0}, 0.0)
    put(spool, 2, {name: 2.0}, 0.0)
    assert [r["v"] for r in records(spool)] == [{name: 1.0}, {name: 2.0}]


def test_what_is_no_reason_for_a_directory_waits_for_one_that_is(spool, clock):
    spool.write("h", v={"lr": 1})
    spool.write("w", code="x", text="y")
    assert not spool.path.parent.parent.exists()
    clock.now = 2000.0
    put(spool, 1, {"loss": 1.0}, clock.now)
    assert [(r["k"], r["n"], r["t"]) for r in records(spool)] == [("h", 0, 1000.0), ("w", 1, 1000.0), ("s", 2, 2000.0)]


def test_on_the_platform_nothing_waits(tmp_path):
    spool = Spool(read_context("t", None, {"SHOAL_SPOOL": str(tmp_path / "spool")}))
    spool.write("h", v={})
    assert [r["k"] for r in records(spool)] == ["h"]
    assert not (tmp_path / "run.json").exists()
    spool.close()


def test_a_second_process_goes_on_counting_and_heals_a_torn_line(tmp_path, clock):
    context = read_context("t", tmp_path / "run", {})
    first = Spool(context, clock=clock)
    put(first, 1, {"loss": 1.0}, 0.0)
    put(first, 2, {"loss": 1.0}, 0.0)
    first.close()
    with first.path.open("ab") as file:
        file.write(b'{"t":1.0,"n":2,"k":"s","i":3,"v":{"lo')
    second = Spool(context, clock=clock)
    put(second, 3, {"loss": 2.0}, 0.0)
    second.close()
    lines = second.path.read_bytes().splitlines()
    assert len(lines) == 5
    with pytest.raises(ValueError):
        json.loads(lines[2])
    assert [json.loads(lines[i])["n"] for i in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert json.loads(lines[4])["i"] == 3


def test_a_directory_that_cannot_be_made_costs_one_warning_and_the_oldest_steps(tmp_path, clock, caplog, monkeypatch):
    monkeypatch.setattr(spool_module, "_MOST_STEPS", 50)
    (tmp_path / "run").write_text("in the way")
    spool = Spool(read_context("t", tmp_path / "run", {}), clock=clock)
    with caplog.at_level(logging.WARNING):
        for step in range(100):
            put(spool, step, {"loss": 1.0}, clock.now)
    assert spool.dropped == 50
    assert len(caplog.records) == 1
    (tmp_path / "run").unlink()
    clock.now += 60
    put(spool, 100, {"loss": 1.0}, clock.now)
    first, *rest = records(spool)
    assert (first["k"], first["code"]) == ("w", "spool_dropped") and "50 records" in first["text"]
    assert [r["i"] for r in rest] == list(range(50, 101))
    spool.close()


@pytest.fixture
def small_disk(monkeypatch):
    """Disk with room for so many more bytes: `disk.room`; None is without a limit."""
    real = os.write

    class Disk:
        room = None

    def write(fd, data):
        if Disk.room is None:
            return real(fd, data)
        if Disk.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = data[: Disk.room]
        Disk.room -= len(part)
        return real(fd, part)

    monkeypatch.setattr(spool_module.os, "write", write)
    return Disk


def test_what_a_full_disk_does_not_take_waits_in_memory_and_is_written_once_there_is_room(
    spool, clock, small_disk, caplog
):
    put(spool, 1, {"loss": 1.0}, clock.now)
    small_disk.room = 20
    with caplog.at_level(logging.WARNING):
        for step in range(2, 50):
            clock.now += 1
            put(spool, step, {"loss": float(step)}, clock.now)
            spool.write("e", i=step, v={"acc": 1.0})
    assert len(caplog.records) == 1
    small_disk.room = None
    clock.now += 60
    put(spool, 50, {"loss": 50.0}, clock.now)
    assert spool.dropped == 0
    lines = spool.path.read_bytes().splitlines()
    good = [json.loads(line) for at, line in enumerate(lines) if at != 1]
    assert [r["n"] for r in good] == [n for n in range(len(lines)) if n != 1]
    assert [(r["i"], r["v"]["loss"]) for r in good if r["k"] == "s"][1:] == [(n, float(n)) for n in range(2, 51)]
    assert [r["i"] for r in good if r["k"] == "e"] == list(range(2, 50))


def test_a_batch_that_is_cut_short_after_any_byte_is_whole_in_the_end(tmp_path, clock, small_disk):
    for room in range(1, 420):
        small_disk.room = None
        spool = Spool(read_context("t", tmp_path / str(room), {}), clock=clock)
        put(spool, 0, {"loss": 1.0}, clock.now)
        small_disk.room = room
        for step in range(1, 10):
            spool.write_step(step, {"loss": 1.0}, clock.now)
        spool.flush()
        spool.write("e", i=9, v={"acc": 1.0})
        small_disk.room = None
        clock.now += 60
        spool.close()
        good = []
        for at, line in enumerate(spool.path.read_bytes().splitlines()):
            try:
                good.append(json.loads(line))
            except ValueError:
                continue
            assert good[-1]["n"] == at, room
        assert [r["i"] for r in good if r["k"] == "s"] == list(range(10)), room
        assert [r["i"] for r in good if r["k"] == "e"] == [9], room
        assert spool.dropped == 0


def test_a_job_waits_at_its_end_for_a_disk_that_takes_nothing(tmp_path, small_disk, monkeypatch):
    spool = Spool(read_context("t", None, {"SHOAL_SPOOL": str(tmp_path / "spool")}))
    small_disk.room = 0
    spool.write_step(1, {"loss": 1.0}, 1.0)

    def free(_):
        small_disk.room = None

    monkeypatch.setattr(spool_module.time, "sleep", free)
    spool.close()
    assert [r["i"] for r in records(spool)] == [1]
    assert spool.dropped == 0


def test_elsewhere_the_end_does_not_wait_and_says_what_was_lost(spool, small_disk, caplog):
    small_disk.room = 0
    spool.write_step(1, {"loss": 1.0}, 1.0)
    spool.close()
    assert spool.dropped == 1
    assert "1 records could not be written" in caplog.text


def test_a_removed_directory_is_made_anew(spool, clock):
    put(spool, 1, {"loss": 1.0}, clock.now)
    shutil.rmtree(spool.path.parent.parent)
    put(spool, 2, {"loss": 1.0}, clock.now)
    spool.check()
    put(spool, 3, {"loss": 1.0}, clock.now)
    assert [(r["n"], r["i"]) for r in records(spool)] == [(0, 3)]


def test_line_numbers_are_right_with_several_threads(spool):
    def many(kind):
        for step in range(300):
            if kind == "s":
                put(spool, step, {"loss": 1.0}, 0.0)
            else:
                spool.write("l", name=kind, e=step)

    threads = [threading.Thread(target=many, args=(k,)) for k in ("s", "a", "b")]
    spool.write("p", i=0)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r["n"] for r in records(spool)] == list(range(901))


def test_a_forked_child_writes_nothing(spool):
    put(spool, 1, {"loss": 1.0}, 0.0)
    pid = os.fork()
    if pid == 0:
        spool.forget()
        put(spool, 2, {"loss": 1.0}, 0.0)
        spool.write("e", i=2, v={})
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(records(spool)) == 1


def test_after_closing_nothing_is_written(spool):
    put(spool, 1, {"loss": 1.0}, 0.0)
    spool.close()
    put(spool, 2, {"loss": 1.0}, 0.0)
    spool.write("e", i=2, v={})
    assert len(records(spool)) == 1


def test_steps_are_written_soon_without_being_asked_and_before_any_other_record(spool):
    for step in range(3):
        spool.write_step(step, {"loss": 1.0}, 0.0)
    deadline = time.monotonic() + patient(30)
    while len(spool.path.read_text().splitlines()) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    spool.write_step(3, {"loss": 1.0}, 0.0)
    spool.write("e", i=3, v={"loss": 0.5})
    found = [json.loads(line) for line in spool.path.read_text().splitlines()]
    assert [(r["k"], r["i"], r["n"]) for r in found] == [
        ("s", 0, 0),
        ("s", 1, 1),
        ("s", 2, 2),
        ("s", 3, 3),
        ("e", 3, 4),
    ]
