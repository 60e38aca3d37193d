"""Captured output becomes records: per rank, capped, redacted."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.outbox.outbox import Outbox
from shoal.agent.workers.lines import Redactor
from shoal.agent.workers.logs import Capture


@pytest.fixture
def records(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    def read() -> list[dict[str, Any]]:
        spool, out = Outbox(tmp_path / "spool"), []
        while (batch := spool.read()) is not None:
            out += [json.loads(line) for line in batch.body.split(b"\n")]
            spool.ack(batch.first + batch.records)
        return out

    return read


def capture(tmp_path: Path, *secrets: str, rate_kb_s: int = 2048) -> Capture:
    made = Capture(Outbox(tmp_path / "spool"), Redactor(secrets), rate_kb_s)
    made.start()
    return made


def test_lines_carry_their_rank_and_stream(tmp_path: Path, records: Callable[[], list[dict[str, Any]]]) -> None:
    logs = capture(tmp_path)
    for rank, stream, text in [(0, "out", b"a\n"), (1, "err", b"b\n"), (0, "out", b"no newline")]:
        fd = logs.pipe(rank, stream)
        os.write(fd, text)
        os.close(fd)
    logs.write_message("[shoal] hello")
    logs.close()
    found = sorted((r["r"] if r["r"] is not None else -1, r["e"], r["m"]) for r in records())
    assert found == [(-1, "sys", "[shoal] hello"), (0, "out", "a"), (0, "out", "no newline"), (1, "err", "b")]


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path, records: Callable[[], list[dict[str, Any]]]) -> None:
    logs = capture(tmp_path)
    fd = logs.pipe(0, "out")
    os.write(fd, b"caf\xe9 \xf0\x9f\x90\x9f\n")
    os.close(fd)
    logs.close()
    assert [r["m"] for r in records()] == ["caf\ufffd 🐟"]


def test_secrets_do_not_reach_the_log_nor_the_reason(
    tmp_path: Path, records: Callable[[], list[dict[str, Any]]]
) -> None:
    logs = capture(tmp_path, "hunter2hunter2")
    fd = logs.pipe(0, "err")
    os.write(fd, b"ValueError: hunter2hunter2\n")
    os.close(fd)
    logs.close()
    assert [r["m"] for r in records()] == ["ValueError: ***"]
    assert logs.tail(0, "err") == "ValueError: ***\n"


def test_a_pipe_that_somebody_keeps_open_does_not_hold_up_the_end(
    tmp_path: Path, records: Callable[[], list[dict[str, Any]]]
) -> None:
    logs = capture(tmp_path)
    fd = logs.pipe(0, "out")
    os.write(fd, b"last words")
    before = time.monotonic()
    logs.close()
    assert time.monotonic() - before < 2
    os.close(fd)
    assert [r["m"] for r in records()] == ["last words"]


def test_a_flood_is_capped_counted_and_its_end_still_known(
    tmp_path: Path, records: Callable[[], list[dict[str, Any]]]
) -> None:
    logs = capture(tmp_path, rate_kb_s=64)
    fd = logs.pipe(0, "out")
    lines = 200_000

    def flood() -> None:
        for n in range(0, lines, 1000):
            data = b"".join(b"line %d\n" % i for i in range(n, n + 1000))
            while data:
                data = data[os.write(fd, data) :]
        os.close(fd)

    thread = threading.Thread(target=flood)
    thread.start()
    thread.join()
    logs.close()
    found = records()
    kept = [r for r in found if r["e"] == "out"]
    notices = [r["m"] for r in found if r["e"] == "sys"]
    assert len(kept) < 30_000 and notices
    assert sum(int(n.split()[1]) for n in notices) + len(kept) == lines
    assert logs.tail(0, "out").endswith(f"line {lines - 1}\n")


def test_capture_goes_on_after_a_fault(tmp_path: Path, records: Callable[[], list[dict[str, Any]]]) -> None:
    """Reading must continue: otherwise the pipes would fill up, and the workers wait forever."""
    logs = capture(tmp_path)
    heard = threading.Event()

    def broken(line: bytes) -> None:
        if line == b"first":
            raise OSError(28, "No space left on device")
        heard.set()

    logs.watched_rank, logs.on_line = 0, broken
    fd = logs.pipe(0, "out")
    os.write(fd, b"first\nsecond\n")
    assert heard.wait(60)
    os.close(fd)
    logs.close()
    assert [r["m"] for r in records()] == ["first", "second"]
