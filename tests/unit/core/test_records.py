"""Every kind of record has one class, goes one way, and is handled by the agent, the server and the importer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.core.records import (
    AGENT_ONLY,
    KEPT,
    RECORDS,
    SERIES,
    Bug,
    Checkpoint,
    Config,
    Data,
    Display,
    Drill,
    Evaluation,
    Finish,
    Kind,
    Media,
    Progress,
    Samples,
    Scraped,
    Step,
    Warning,
)

EXAMPLES = [
    Step(step=3, values={"loss": 0.5}),
    Evaluation(step=3, values={"accuracy": 0.9}),
    Progress(step=3, total=10, epoch=0.5, epochs=1, done=False),
    Finish(step=3, status="failed", why="ValueError: no"),
    Config(values={"lr": 0.1}),
    Data(name="train", size=20, seed=1, batch=4, drop_last=False, shuffle=True, session="a", resumed_step=0),
    Samples(name="train", epoch=0, steps=[1, 3], batches=[0, 3], checksum=7, rank=[0, 1], session="a"),
    Checkpoint(step=3, name="step-3"),
    Warning(code="same_data", text="every rank reads the same data"),
    Media(step=3, name="curve", type="image", file="media/curve.png", mime="image/png"),
    Bug(step=3, seen=12, name="step-3-rank-0", error="ValueError", text="no", where="train.py:3"),
    Drill(do="cut", fault=1, seconds=2.0),
    Scraped(step=3, values={"loss": 0.5}),
    Display(metric="eval/*", values={"step": "tokens"}),
]
each_record = pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: record.kind.name)


def line(record, **more):
    return {"t": 1.0, "n": 0, "k": record.kind, **record.encode(), **more}


def test_every_kind_has_one_class_an_example_and_one_way_to_go():
    assert set(RECORDS) == {record.kind for record in EXAMPLES} == set(Kind)
    ways = [*SERIES, *KEPT, *AGENT_ONLY]
    assert sorted(ways) == sorted(Kind)


@each_record
def test_a_record_survives_the_way_through_json(record):
    decoded = json.loads(json.dumps(line(record)))
    again = RECORDS[Kind(decoded["k"])].decode(decoded)
    assert again.encode() == record.encode()


def test_the_lines_on_the_wire_are_unchanged():
    expected = [
        {"k": "s", "i": 3, "v": {"loss": 0.5}},
        {"k": "e", "i": 3, "v": {"accuracy": 0.9}},
        {"k": "p", "i": 3, "total": 10, "epoch": 0.5, "epochs": 1, "done": False},
        {"k": "f", "i": 3, "status": "failed", "why": "ValueError: no"},
        {"k": "h", "v": {"lr": 0.1}},
        {
            "k": "d",
            "name": "train",
            "size": 20,
            "seed": 1,
            "batch": 4,
            "drop_last": False,
            "shuffle": True,
            "x": "a",
            "from": 0,
        },
        {"k": "l", "name": "train", "e": 0, "i": [1, 3], "p": [0, 3], "c": 7, "r": [0, 1], "x": "a"},
        {"k": "c", "i": 3, "name": "step-3"},
        {"k": "w", "code": "same_data", "text": "every rank reads the same data"},
        {"k": "m", "i": 3, "name": "curve", "type": "image", "file": "media/curve.png", "mime": "image/png"},
        {
            "k": "b",
            "i": 3,
            "seen": 12,
            "name": "step-3-rank-0",
            "error": "ValueError",
            "text": "no",
            "where": "train.py:3",
        },
        {"k": "x", "do": "cut", "fault": 1, "seconds": 2.0},
        {"k": "g", "i": 3, "v": {"loss": 0.5}},
        {"k": "y", "metric": "eval/*", "v": {"step": "tokens"}},
    ]
    assert [{"k": record.kind, **record.encode()} for record in EXAMPLES] == expected


@each_record
def test_the_agent_sends_on_just_what_the_server_keeps(record, tmp_path):
    from shoal.agent.sdk_records.spool import RunSpool

    class Listener:
        shipped: list[bytes] = []

        def ship(self, lines):
            self.shipped = lines

        def on_record(self, rank, number, found):
            return reports(tmp_path).on_record(rank, number, found)

    (tmp_path / "rank-0.jsonl").write_text(json.dumps(line(record)) + "\n")
    listener = Listener()
    RunSpool(tmp_path, tmp_path / "notes", listener).poll()
    assert [json.loads(sent)["k"] for sent in listener.shipped] == ([] if record.kind in AGENT_ONLY else [record.kind])


def reports(folder: Path):
    """Return the agent's reports with nothing behind them: its courier and its drill only note what they are given."""
    from shoal.agent.sdk_records.reports import RunReports

    class Aside:
        def __getattr__(self, name):
            return lambda *args, **options: None

    made = object.__new__(RunReports)
    made.__dict__.update(_progress=Aside(), _courier=Aside(), _outbox=Aside(), _outage=Aside(), _includes_text=True,
                         _say=lambda text: None, on_checkpoint=lambda: None, _folder=folder)  # fmt: skip
    return made


@each_record
def test_the_server_keeps_curves_and_records_and_nothing_else(record):
    pytest.importorskip("zstandard", reason="needs the server extra")
    from shoal.server.metrics.intake import select_new

    taken = select_new([json.loads(json.dumps(line(record, rank=0, q=0)))], {})
    assert bool(taken.series) == (record.kind in SERIES)
    assert [other["k"] for other in taken.others] == ([record.kind] if record.kind in KEPT else [])


def test_the_agent_knows_every_command():
    from shoal.agent.node.commands import Commands
    from shoal.core.commands import Command

    assert set(Commands(None, None, None, range(1), print)._known) == set(Command) - {Command.SNAPSHOT}, (
        "the rest is for leases"
    )
