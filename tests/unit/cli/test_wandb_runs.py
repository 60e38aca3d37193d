"""Offline runs of Weights & Biases as run directories. The logs are written here as W&B writes them, without W&B."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.run.run_files import RunFiles
from shoal.cli.sync.wandb_runs import convert, find_wandb_runs, read_log, unpack_runs
from shoal.core.errors import NotFound, Refused

BLOCK = 32_768


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def item(key: str | list[str], value: Any) -> bytes:
    names = field(1, key) if isinstance(key, str) else b"".join(field(2, part) for part in key)
    return field(1, names + field(16, json.dumps(value)))


def history(step: int, at: float, **values: Any) -> bytes:
    told = {**values, "_step": step, "_timestamp": at, "_runtime": 1.0}
    return field(2, b"".join(item(key, value) for key, value in told.items()) + field(2, field(1, step)))


def log(*records: bytes) -> bytes:
    """The records in LevelDB's format: in blocks, longer ones in several pieces. Checksums are not read."""
    out = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    for record in records:
        first = True
        while first or record:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out, room = out + bytes(room), BLOCK
            piece, record = record[: room - 7], record[room - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            out, first = out + struct.pack("<IHB", 0, len(piece), kind) + piece, False
    return out


RUN = field(17, field(1, "abc123") + field(3, "proj") + field(4, item("lr", 0.1) + item("_wandb", {})) + field(8, "my run") + field(17, field(1, 1_700_000_000)))  # fmt: skip
END = field(18, field(1, 0))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "wandb" / "offline-run-20231114_221320-abc123"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "output.log").write_text("hello\n")
    return folder


def write(run: Path, *records: bytes) -> None:
    (run / "run-abc123.wandb").write_bytes(log(*records))


def lines(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "spool" / "rank-0.jsonl").read_text().splitlines()]


def test_metrics_parameters_times_output_and_the_end_are_taken_over(run: Path) -> None:
    config = field(5, item(["model", "size"], 7))
    summary = field(3, item("best", 0.25) + item("loss", 0.5))
    write(
        run,
        RUN,
        config,
        history(0, 1_700_000_001.0, loss=1.0, deep={"acc": 1, "pic": {"_type": "image-file"}}, note="text", ok=True),
        history(5, 1_700_000_002.0, loss=math.nan, other="Infinity"),
        summary,
        END,
    )
    root = convert(run)
    steps = [(line["k"], line["i"], line["v"], line["t"]) for line in lines(root) if line["k"] in "se"]
    assert steps == [
        ("s", 0, {"loss": 1.0, "deep.acc": 1, "ok": 1.0}, 1_700_000_001.0),
        ("s", 5, {"loss": "nan", "other": "inf"}, 1_700_000_002.0),
        ("e", 5, {"best": 0.25}, 1_700_000_002.0),
    ]
    assert [line["v"] for line in lines(root) if line["k"] == "h"][-1] == {"lr": 0.1, "model.size": 7}
    files = RunFiles(root)
    about = files.describe(None)
    assert (about.name, about.created.timestamp(), about.run_id) == ("my-run", 1_700_000_000, "wandb-abc123-1700000000")
    files.ending.note(lines(root)[-1])
    assert files.state().status == "succeeded"
    assert [path.read_text() for _, path in files.logs()] == ["hello\n"]


def test_a_run_that_goes_on_is_converted_to_the_same_lines_and_more(run: Path) -> None:
    records = [RUN, *(history(n, 1_700_000_000.0 + n, loss=1.0 / (n + 1), text="x" * 500) for n in range(200))]
    assert len(log(*records)) > 3 * BLOCK
    write(run, *records[:100])
    first = lines(convert(run))
    write(run, *records, field(18, field(1, 3)))
    second = lines(convert(run))
    assert second[: len(first)] == first and len(second) == 202
    assert (second[-1]["status"], second[-1]["why"]) == ("failed", "exit code 3")


def test_a_log_that_is_cut_off_anywhere_is_read_up_to_there(run: Path) -> None:
    whole = log(RUN, *(history(n, 1.0, loss=float(n)) for n in range(3)), END)
    counts = set()
    for size in range(7, len(whole), 7):
        (run / "run-abc123.wandb").write_bytes(whole[:size])
        counts.add(len(lines(convert(run))))
    assert counts == {0, 1, 2, 3, 4}


def test_large_records_are_in_pieces(run: Path) -> None:
    write(run, b"a" * 100, b"b" * (3 * BLOCK), b"c")
    assert [len(record) for record in read_log(run / "run-abc123.wandb")] == [100, 3 * BLOCK, 1]


def test_runs_are_found_by_their_own_folder_the_wandb_folder_and_the_one_around_it(run: Path, tmp_path: Path) -> None:
    write(run, RUN, END)
    for folder in (run, run.parent, tmp_path):
        assert [path.name for path in find_wandb_runs(folder)] == [run.name]
        assert unpack_runs(folder) == [(path / ".shoal-run", path) for path in find_wandb_runs(folder)]
    with pytest.raises(NotFound):
        unpack_runs(tmp_path / "nothing")
    (run / "run-abc123.wandb").write_bytes(b"something else")
    with pytest.raises(Refused, match="not a log of Weights & Biases"):
        convert(run)
