"""Charts for notebooks, and what stands in for pandas without it."""

import re
import sys
import xml.dom.minidom

import pytest

from shoal.api.chart import svg
from shoal.api.frames import Table
from shoal.api.metrics import of_view
from shoal.core.errors import MissingExtra


def drawn(text):
    """Return the y values of a chart's curve."""
    return [float(pair.partition(",")[2]) for pair in re.search(r'points="([^"]*)"', text)[1].split()]


def test_a_chart_is_valid_and_escapes_names():
    text = svg({"<b>&loss": [(1, 2.0), (2, 1.0)], "one": [(1, 3.0)], "empty": [], "bad": [(1, float("nan"))]})
    xml.dom.minidom.parseString(text)
    assert "&lt;b&gt;&amp;loss" in text and text.count("<svg") == 3 and text.count("<circle") == 1
    assert "no metrics yet" in svg({})
    assert "and 2 more" in svg({str(n): [(1, 1.0)] for n in range(8)})


def test_a_peak_among_many_points_stays():
    points = [(step, 1.0) for step in range(100_000)]
    points[54_321] = (54_321, 9.0)
    heights = drawn(svg({"loss": points}))
    assert len(heights) < 1_000 and heights.count(min(heights)) == 1, "one peak, at the top"


def test_metrics_are_a_mapping_and_text_is_a_number():
    found = of_view({"metrics": {"loss": [[1, 2.0], [2, "nan"]], "lr": []}}, "step")
    assert list(found) == ["loss", "lr"] and len(found) == 2 and found.last["loss"] != found.last["loss"]
    assert "lr" not in found.last and repr(found) == "Metrics(loss=nan)"


def test_a_frame_without_pandas_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra) as refused:
        Table().frame()
    assert refused.value.hint == "pip install pandas"
