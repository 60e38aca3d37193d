"""Curves as PNG files: what is drawn is what was logged."""

from __future__ import annotations

import json
import struct
import zlib

import pytest

from shoal.train import figures
from shoal.train.canvas import WHITE, Canvas

INK = (0, 0, 0)


def pixels(data):
    """(width, height, rows of RGB) of a PNG as we write it."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body, size = 8, b"", (0, 0)
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        chunk = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + chunk)
        size = struct.unpack(">II", chunk[:8]) if kind == b"IHDR" else size
        body += chunk if kind == b"IDAT" else b""
        at += 12 + length
    plain, (width, height) = zlib.decompress(body), size
    row = 1 + 3 * width
    assert len(plain) == row * height
    return width, height, [plain[y * row + 1 : (y + 1) * row] for y in range(height)]


def curve_rows(data):
    """Column → rows the curve's colour is in."""
    width, _, rows = pixels(data)
    colour = bytes(figures._CURVE)
    return {x: [y for y, row in enumerate(rows) if row[3 * x : 3 * x + 3] == colour] for x in range(width)}


def test_a_falling_loss_falls_in_the_picture():
    found = {x: ys for x, ys in curve_rows(figures.chart("loss", [(i, 100.0 - i) for i in range(50)])).items() if ys}
    columns = sorted(found)
    assert len(columns) > 700
    middle = [min(found[x]) for x in columns]
    assert middle == sorted(middle) and middle[-1] - middle[0] > 300


def test_files_are_named_after_the_series_and_the_width(tmp_path):
    series = {
        "train.loss": [(i, 1 / (i + 1)) for i in range(500)],
        "eval/error": [(0, float("nan"))],
        "f1 score": [(5, 2)],
    }
    made = figures.draw(tmp_path / "run.1", series, smooth=(1, 256))
    assert [p.name for p in made] == [
        "run.1.train.loss.png", "run.1.train.loss.smoothed_256.png", "run.1.f1.score.png", "run.1.f1.score.smoothed_256.png",
    ]  # fmt: skip
    for path in made:
        assert pixels(path.read_bytes())[:2] == (900, 540)
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
    highest = min(min(ys) for ys in curve_rows(figures.chart("spike", points)).values() if ys)
    assert highest < 70, "the spike reaches the top"


def test_a_constant_series_and_a_single_point_can_be_drawn():
    for points in ([(0.0, 5.0)] * 3, [(1e9, -2.0)]):
        assert any(curve_rows(figures.chart("flat", points)).values())


def test_letters_are_where_they_should_be():
    canvas = Canvas(20, 10)
    canvas.text(1, 1, "L", INK)
    assert [canvas.colour_at(1, y) for y in range(1, 8)] == [INK] * 7
    assert [canvas.colour_at(x, 7) for x in range(1, 6)] == [INK] * 5
    assert canvas.colour_at(3, 3) == WHITE and canvas.colour_at(7, 7) == WHITE
    canvas.text(100, 100, "é", INK)  # outside, and no ASCII


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
    assert code == 0 and capsys.readouterr().out.splitlines() == [str(out / "run.train.loss.png")]
    assert figures.main([str(run_dir), "--lines", "train.los"]) == 3
    assert "there is: eval.error, train.loss" in capsys.readouterr().err
    assert figures.main([str(tmp_path / "nowhere")]) == 3
