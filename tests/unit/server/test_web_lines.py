"""The chart workspace's own computations, in JavaScript: names, colours, alignment, outliers, CSV."""

import csv
import json
import shutil

import pytest
from web_node import needs_node, run_node

from shoal.core.metric_expr import parse

NAMES = [
    "loss",
    "train/loss",
    "tokens/s",
    "my metric",
    'a"b\\c',
    "grad-norm",
    "-x",
    "2d",
    "log",
    "größe",
    "a\nb",
    "",
    "top-5.acc",
]
SCRIPT = """
import { align, colours, colourOf, csv, matches, nearest, quote, SHADES, stepAt, unquote, withoutOutliers } from "./lines.js";
const names = NAMES, ids = Array.from({ length: 20 }, (_, n) => `job_${n}`);
const found = colours(ids), values = Array.from({ length: 100 }, (_, i) => (i === 50 ? 1e6 : i / 100));
console.log(JSON.stringify({
  quoted: names.map(quote), back: names.map((name) => unquote(quote(name))),
  distinct: new Set(found.values()).size, stable: colours(["other", ...ids.slice(0, 1)]).get("job_0") === colourOf("job_0") || colourOf("other") === colourOf("job_0"), shades: SHADES,
  same: align([{ x: [1, 2], columns: [[5, 6]] }, { x: [1, 2], columns: [[7, null]] }]), apart: align([{ x: [1, 3], columns: [[5, 6]] }, { x: [2, 3], columns: [[7, 8]] }]),
  near: [nearest([], 1), nearest([1, 5, 9], 4), nearest([1, 5, 9], 100), nearest([1, 5, 9], -3)],
  cut: withoutOutliers([values]), small: withoutOutliers([values, [-50, -50]]), flat: withoutOutliers([[2, 2]]),
  csv: csv("step", [{ label: "=cmd(),x", x: [1, 2], mean: [0.5, null], low: [0, 0], high: [1, 1] }, { label: "b", x: [2], mean: [-3], smooth: [-2] }]),
  matches: [matches("eval/*", "eval/loss"), matches("eval/*", "train/eval/loss"), matches("a.b", "axb"), matches("*", "x")],
  step: [stepAt({ x: [0, 10, 20], at: [100, 110, 130] }, 120), stepAt({ x: [0], at: [100] }, 99), stepAt(null, 1)],
}));
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    if shutil.which("node") is None:
        pytest.skip("needs node")
    return run_node(tmp_path_factory.mktemp("node"), SCRIPT.replace("NAMES", json.dumps(NAMES), 1))


@needs_node
def test_every_name_is_quoted_as_the_server_reads_it(told):
    assert told["back"] == NAMES
    assert [parse(text).names for name, text in zip(NAMES, told["quoted"], strict=True)] == [[name] for name in NAMES]


@needs_node
def test_colours_are_stable_and_those_of_a_chart_differ(told):
    assert told["distinct"] == 20 <= told["shades"] and told["stable"]


@needs_node
def test_lines_are_aligned_with_gaps(told):
    assert told["same"] == [[1, 2], [5, 6], [7, None]]
    assert told["apart"] == [[1, 2, 3], [5, None, 6], [None, 7, 8]]
    assert told["near"] == [-1, 1, 2, 0]


@needs_node
def test_outliers_are_cut_from_each_line_by_itself(told):
    assert told["cut"][1] < 1.2 and told["small"][0] < -50 and told["flat"] is None


@needs_node
def test_a_chart_as_csv_holds_no_formula(told):
    head, *rows = csv.reader(told["csv"].splitlines())
    assert head == ["step", "'=cmd(),x", "'=cmd(),x low", "'=cmd(),x high", "b", "b smoothed"]
    assert rows == [["1", "0.5", "0", "1", "", ""], ["2", "", "0", "1", "-3", "-2"]]


@needs_node
def test_patterns_and_places(told):
    assert told["matches"] == [True, False, False, True] and told["step"] == [15, None, None]
