"""Following what the SDK writes: real files, torn lines, a reader that dies and goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.sdk_records.spool import RunSpool


class Heard:
    """Takes what the reader finds, as the agent does."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.records: list[tuple[int, int, dict[str, Any]]] = []

    def ship(self, lines: list[bytes]) -> None:
        self.lines += [json.loads(line) for line in lines]

    def on_record(self, rank: int, line: int, record: dict[str, Any]) -> bool:
        self.records.append((rank, line, record))
        return record["k"] not in "pm"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sdk").mkdir()
    return tmp_path / "sdk"


def reader(folder: Path, **options: Any) -> tuple[RunSpool, Heard]:
    heard = Heard()
    return RunSpool(folder, folder.parent / "read.json", heard, **options), heard


def write(folder: Path, text: str, rank: int = 0) -> None:
    with (folder / f"rank-{rank}.jsonl").open("a") as file:
        file.write(text)


def step(i: int, n: int | None = None) -> str:
    return json.dumps({"t": 1.5, "n": i if n is None else n, "k": "s", "i": i, "v": {"loss": i}}) + "\n"


def test_lines_are_passed_on_with_their_rank_and_number(folder: Path) -> None:
    spool, heard = reader(folder)
    write(folder, step(1) + step(2))
    write(folder, '{"t":1,"n":0,"k":"l","r":[1,2]}\n', rank=1)
    assert spool.poll()
    assert [(r["rank"], r["q"], r["k"]) for r in heard.lines] == [(0, 0, "s"), (0, 1, "s"), (1, 0, "l")]
    assert heard.lines[2]["r"] == [1, 2]
    assert heard.lines[0]["v"] == {"loss": 1}


def test_a_line_is_passed_on_once_it_has_its_end(folder: Path) -> None:
    spool, heard = reader(folder)
    write(folder, step(1) + step(2)[:10])
    spool.poll()
    assert [r["i"] for r in heard.lines] == [1]
    write(folder, step(2)[10:])
    spool.poll()
    assert [(r["i"], r["q"]) for r in heard.lines] == [(1, 0), (2, 1)]


def test_a_line_torn_by_a_kill_costs_only_itself(folder: Path) -> None:
    """The next process of the rank ends it with a newline of its own."""
    spool, heard = reader(folder)
    write(folder, step(1) + step(2)[:20] + "\n" + "\n" + "not json}\n" + '{"k":"w"\n' + step(3))
    spool.poll()
    assert [(r["i"], r["q"]) for r in heard.lines] == [(1, 0), (3, 5)]


def test_who_comes_after_a_dead_reader_goes_on_where_it_stopped(folder: Path) -> None:
    first, heard = reader(folder)
    write(folder, step(1) + step(2))
    first.poll()
    write(folder, step(3))
    second, later = reader(folder)
    second.drain()
    assert [r["i"] for r in heard.lines] == [1, 2]
    assert [(r["i"], r["q"]) for r in later.lines] == [(3, 2)]


def test_a_reader_that_died_before_noting_it_passes_lines_on_again_under_the_same_numbers(folder: Path) -> None:
    first, heard = reader(folder)
    write(folder, step(1) + step(2))
    first.poll()
    (folder.parent / "read.json").unlink()
    second, again = reader(folder)
    second.drain()
    assert again.lines == heard.lines


def test_of_many_steps_only_the_last_is_looked_at_and_all_are_passed_on(folder: Path) -> None:
    spool, heard = reader(folder)
    write(folder, "".join(step(i) for i in range(5000)))
    spool.drain()
    assert len(heard.lines) == 5000
    assert [record["i"] for _, _, record in heard.records] == [4999]


def test_a_flood_is_taken_in_turns_that_end(folder: Path) -> None:
    spool, heard = reader(folder)
    write(folder, "".join(step(i) for i in range(60_000)))
    assert not spool.poll(for_s=0.0)
    taken = len(heard.lines)
    assert 0 < taken < 60_000
    spool.drain()
    assert [r["q"] for r in heard.lines] == list(range(60_000))


def test_what_the_listener_keeps_is_not_shipped_but_counted(folder: Path) -> None:
    spool, heard = reader(folder)
    write(
        folder,
        '{"t":1,"n":0,"k":"p","i":0,"total":9}\n' + step(1) + '{"t":1,"n":2,"k":"m","file":"media/a"}\n' + step(2),
    )
    spool.poll()
    assert [(r["k"], r["q"]) for r in heard.lines] == [("s", 1), ("s", 3)]
    assert [(line, r["k"]) for _, line, r in heard.records] == [(0, "p"), (2, "m"), (3, "s")]


def test_a_line_longer_than_a_piece_is_still_one_line(folder: Path) -> None:
    spool, heard = reader(folder)
    text = "x" * (3 << 20)
    write(folder, json.dumps({"t": 1, "k": "h", "v": text}) + "\n" + step(1))
    spool.drain()
    assert [(r["k"], r["q"]) for r in heard.lines] == [("h", 0), ("s", 1)]
    assert heard.lines[0]["v"] == text


def test_secrets_are_hidden_and_files_of_other_names_and_links_ignored(folder: Path) -> None:
    spool, heard = reader(folder, redact=lambda data: data.replace(b"hunter2", b"***"))
    write(folder, '{"t":1,"n":0,"k":"h","v":{"password":"hunter2"}}\n')
    (folder / "rank-x.jsonl").write_text(step(7))
    (folder / "other.jsonl").write_text(step(8))
    (folder / "rank-9.jsonl").symlink_to(folder / "other.jsonl")
    spool.drain()
    assert [r["v"] for r in heard.lines] == [{"password": "***"}]


def test_nothing_written_yet_is_nothing(tmp_path: Path) -> None:
    spool, heard = reader(tmp_path / "absent")
    assert spool.poll()
    assert heard.lines == []
