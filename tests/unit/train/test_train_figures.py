"""Curves as files: what is drawn is what was logged."""

from __future__ import annotations

import json
import struct
from xml.etree import ElementTree

import pytest

from shoal.core.errors import MissingExtra
from shoal.testing.extras import needs
from shoal.train import figures


def parse(data):
    """Root of an SVG; the namespace is left out of the names."""
    root = ElementTree.fromstring(data)
    for element in root.iter():
        element.tag = element.tag.removeprefix("{http://www.w3.org/2000/svg}")
    return root


def curve(data):
    """Points (x, y) of the curve, y downwards."""
    return [tuple(map(int, p.split(","))) for p in parse(data).find("polyline").get("points").split()]


@pytest.fixture
def plain(monkeypatch):
    """Let matplotlib appear not to be installed."""
    monkeypatch.setattr(figures, "find_spec", lambda name: None)


def test_a_falling_loss_falls_in_the_picture():
    found = curve(figures.chart("loss", [(i, 100.0 - i) for i in range(50)]))
    assert [x for x, _ in found] == sorted(x for x, _ in found) and found[-1][0] - found[0][0] > 700
    assert [y for _, y in found] == sorted(y for _, y in found) and found[-1][1] - found[0][1] > 300


def test_files_are_named_after_the_series_and_the_width(tmp_path):
    series = {
        "train.loss": [(i, 1 / (i + 1)) for i in range(500)],
        "eval/error": [(0, float("nan"))],
        "f1 score": [(5, 2)],
    }
    made = figures.draw(tmp_path / "run.1", series, smooth=(1, 256))
    assert [p.name for p in made] == [
        "run.1.train.loss.svg", "run.1.train.loss.smoothed_256.svg", "run.1.f1.score.svg", "run.1.f1.score.smoothed_256.svg",
    ]  # fmt: skip
    for path in made:
        assert parse(path.read_bytes()).get("viewBox") == "0 0 900 540"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_smoothed_point_is_the_mean_of_those_before_it():
    points = [(float(i), float(v)) for i, v in enumerate([4, 2, 6, 8, 0])]
    assert figures.moving_mean(points, 3) == [
        (0, 4),
        (1, 3),
        (2, 4),
        (3, pytest.approx(16 / 3)),
        (4, pytest.approx(14 / 3)),
    ]
    assert figures.moving_mean(points, 1) == points


def test_ticks_are_round_and_within():
    assert figures.ticks(0, 60) == [0, 10, 20, 30, 40, 50, 60]
    assert figures.ticks(-0.013, 0.021) == pytest.approx([-0.01, 0.0, 0.01, 0.02])
    assert [figures.number(v) for v in (0.0, 0.25, 1500.0, 20_000.0, 3e6)] == ["0", "0.25", "1500", "20k", "3M"]


def test_many_points_of_one_column_keep_their_extremes():
    points = [(i, 1.0) for i in range(20_000)]
    points[10_000] = (10_000, 9.0)
    found = curve(figures.chart("spike", points))
    assert min(y for _, y in found) < 70, "the spike reaches the top"
    assert len(found) < 3200, "at most four points for each column of pixels"


def test_a_constant_series_and_a_single_point_can_be_drawn():
    for points in ([(0.0, 5.0)] * 3, [(1e9, -2.0)]):
        circle = parse(figures.chart("flat", points)).find("circle")
        assert 96 < int(circle.get("cx")) < 876 and 48 < int(circle.get("cy")) < 484


def test_a_title_is_only_text():
    root = parse(figures.chart("a<script>&\x00\x1b é", [(0, 1.0), (1, 2.0)]))
    assert "a<script>& é" in [text.text for text in root.iter("text")] and root.find("script") is None


@needs("matplotlib")
def test_matplotlib_draws_png_files(tmp_path):
    made = figures.draw(tmp_path / "run", {"train.$x^{": [(0, 2.0), (1, 1.0)], "one": [(3, 4.0)]}, [1], ".png")
    assert [path.name for path in made] == ["run.train..x.png", "run.one.png"]
    for path in made:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG") and struct.unpack(">II", data[16:24]) == (900, 540)


def test_a_png_without_matplotlib_names_the_extra(plain):
    with pytest.raises(MissingExtra) as error:
        figures.chart("loss", [(0, 1.0)], ".png")
    assert "shoal-train[figures]" in (error.value.hint or "")


@pytest.fixture
def run_dir(tmp_path):
    """Killed after step 4 and gone on from step 2."""
    lines = [{"k": "h", "v": {"lr": 1}}]
    for step in [1, 2, 3, 4, 3, 4, 5]:
        first = len(lines) < 5
        lines.append(
            {"t": 10.0 + len(lines), "k": "s", "i": step, "v": {"loss": step + (10 if first else 0), "seen": 8 * step}}
        )
    lines.append({"t": 99.0, "k": "e", "i": 5, "v": {"eval/error": 0.5, "note": "text"}})
    spool = tmp_path / "run" / "spool"
    spool.mkdir(parents=True)
    (spool / "rank-0.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines) + '{"k": "s", "i": 6, "v"')
    return tmp_path / "run"


def test_a_run_is_read_as_one_history(run_dir):
    series = figures.read_run(run_dir)
    assert series["train.loss"] == [(8, 11), (16, 12), (24, 3), (32, 4), (40, 5)]
    assert series["eval.error"] == [(40, 0.5)] and "train.seen" not in series and "eval.note" not in series
    assert [x for x, _ in figures.read_run(run_dir, "step")["train.loss"]] == [1, 2, 3, 4, 5]


def test_the_command_draws_what_it_is_asked_for(run_dir, tmp_path, capsys):
    out = tmp_path / "out"
    code = figures.main([str(run_dir), "--lines", "train.loss", "--x-from", "10", "--smooth", "1", "--out", str(out)])
    assert code == 0 and capsys.readouterr().out.splitlines() == [str(out / "run.train.loss.svg")]
    assert figures.main([str(run_dir), "--lines", "train.los"]) == 3
    assert "available: eval.error, train.loss" in capsys.readouterr().err
    assert figures.main([str(tmp_path / "nowhere")]) == 3
