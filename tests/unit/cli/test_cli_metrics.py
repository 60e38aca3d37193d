"""`shoal training metrics`, `ledger` and what `inspect` shows of progress, against a scripted server."""

from __future__ import annotations

import json
from typing import Any

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, reply

from shoal.cli.training.spark import number, sparkline

JOB = "/workspaces/default/jobs/hello"
POINTS = {"loss": [[1, 2.0], [2, 1.0], [3, "nan"]], "eval/verdict": [[3, "good, really"]]}
NAMES = [
    {"name": "loss", "kind": "step", "count": 3, "last": "nan", "last_step": 3, "min": 1.0, "max": 2.0},
    {
        "name": "eval/verdict",
        "kind": "eval",
        "count": 1,
        "last": "good, really",
        "last_step": 3,
        "min": None,
        "max": None,
    },
]


@pytest.fixture
def metrics(stub: Stub) -> Stub:
    stub.routes = {
        f"GET {JOB}/metrics": reply(body={"metrics": POINTS, "cursor": 5, "starts": {"1": 1}, "ghosts": None}),
        f"GET {JOB}/metric-names": reply(body=NAMES),
    }
    return stub


def test_the_table_has_a_row_and_a_curve_for_each(metrics: Stub, cli: Cli) -> None:
    rows = [line.split() for line in cli("training", "metrics", "hello").out.splitlines()]
    assert rows[0] == ["METRIC", "LAST", "MIN", "MAX", "STEP", "POINTS", "CURVE"]
    assert rows[1] == ["loss", "nan", "1", "2", "3", "3", "█▁"]
    assert rows[2][:3] == ["eval/verdict", "good,", "really"]


def test_metrics_read_off_the_output_are_marked_and_none_at_all_names_what_adds_them(metrics: Stub, cli: Cli) -> None:
    assert "instrument" not in cli("training", "metrics", "hello").err
    metrics.routes[f"GET {JOB}/metric-names"] = reply(body=[NAMES[0] | {"kind": "log"}])
    assert "Read off the script's output" in cli("training", "metrics", "hello").err
    metrics.routes[f"GET {JOB}/metric-names"] = reply(body=[])
    assert "shoal instrument" in cli("training", "metrics", "hello").err


def test_json_is_a_mapping_of_metrics_to_steps_and_values(metrics: Stub, cli: Cli) -> None:
    assert json.loads(cli("training", "metrics", "hello", "--json").out) == POINTS


def test_names_and_points_are_asked_for(metrics: Stub, cli: Cli) -> None:
    cli("training", "metrics", "hello", "--json", "--name", "loss", "--name", "eval/verdict", "--points", "50")
    asked = metrics.asked[-1]
    assert "name=loss&name=eval%2Fverdict" in asked.path and "points=50" in asked.path
    assert cli("training", "metrics", "hello", "--points", "1").code == 2


def test_csv_quotes_what_needs_it(metrics: Stub, cli: Cli) -> None:
    lines = cli("training", "metrics", "hello", "--csv").out.splitlines()
    assert lines == ["metric,step,value", "loss,1,2.0", "loss,2,1.0", "loss,3,nan", 'eval/verdict,3,"good, really"']


def test_last_values_alone(metrics: Stub, cli: Cli) -> None:
    assert json.loads(cli("training", "metrics", "hello", "--last", "--json").out) == {
        "loss": "nan",
        "eval/verdict": "good, really",
    }
    assert "loss:" in cli("training", "metrics", "hello", "--last").out


def test_inspect_shows_last_metrics_and_the_range_of_the_time_left(stub: Stub, cli: Cli) -> None:
    progress = {
        "step": 40,
        "total": 100,
        "fraction": 0.4,
        "source": "sdk",
        "eta_s": 90.0,
        "eta_low_s": 60.0,
        "eta_high_s": 120.0,
    }
    stub.routes = {
        f"GET {JOB}": reply(body=views.job("running", progress=progress, metrics={"loss": 0.12345678, "why": "x"}))
    }
    text = cli("training", "inspect", "hello").out
    assert "40% step 40 of 100, 1 min 30 s (1 min to 2 min) left" in text
    assert "loss:  0.1235" in text


def ledger(c: int) -> list[dict[str, Any]]:
    about = {
        "k": "d",
        "t": 1.0,
        "name": "train",
        "size": 4,
        "seed": 1,
        "batch": 2,
        "drop_last": False,
        "x": "s",
        "shuffle": False,
    }
    line = {"k": "l", "t": 2.0, "name": "train", "e": 0, "i": [1, 2], "p": [0, 2], "c": c, "r": [0, 1], "x": "s"}
    return [r | {"attempt": 1, "node": 0, "rank": 0} for r in (about, line)]


def test_the_ledger_is_listed_and_audited(stub: Stub, cli: Cli) -> None:
    from shoal.sdk.samples.order import crc_of

    stub.routes = {f"GET {JOB}/ledger": reply(body=ledger(crc_of([0, 1, 2, 3], 0)))}
    assert "1–2" in cli("training", "ledger", "hello").out
    found = cli("training", "ledger", "hello", "--audit")
    assert (found.code, "4 samples" in found.out) == (0, True), found
    stub.routes = {f"GET {JOB}/ledger": reply(body=ledger(1))}
    wrong = cli("training", "ledger", "hello", "--audit", "--json")
    assert (wrong.code, json.loads(wrong.out)["ok"]) == (1, False)
    stub.routes = {f"GET {JOB}/ledger": reply(body=[{"k": "l", "name": "train"}, {"k": "d", "name": "train"}])}
    assert cli("training", "ledger", "hello", "--audit").code == 1


@pytest.mark.parametrize(
    ("points", "shown"),
    [([], ""), ([[1, "text"]], ""), ([[1, 5]], "▄"), ([[0, 0], [1, 1]], "▁█"), ([[0, 1], [5, "inf"], [10, 0]], "█▁")],
)
def test_curves(points: list[list[Any]], shown: str) -> None:
    assert sparkline(points) == shown


def test_a_long_curve_fits_its_width() -> None:
    assert len(sparkline([[i, i % 7] for i in range(10_000)])) == 24


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (0.000123456, "0.0001235"), ("nan", "nan"), (None, ""), (1e300, "1e+300")]
)
def test_numbers(value: Any, text: str) -> None:
    assert number(value) == text
