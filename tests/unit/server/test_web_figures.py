"""The Figures tab: the newest of each name, earlier ones by their place, and nothing of them ever runs."""

import base64
import json
import struct

import pytest
from web_browser import Browser
from web_run import PNG, Run

from shoal.server.web.job import figures
from shoal.server.web.job.figures import table
from shoal.server.web.job.plots import plot

XSS = "<script>alert(1)</script>"
PATH = "/w/default/jobs/a-job/figures"


@pytest.fixture
def run(ctx, anna):
    return Run(ctx, anna)


def test_without_figures_the_page_tells_how_to_log_one(browser, run):
    page = browser.get(PATH).text
    assert "run.log_image" in page


def test_the_newest_is_shown_and_earlier_ones_are_reached_by_the_slider(browser, run):
    ids = [run.show("samples", PNG + bytes([n]), step=n * 100) for n in range(3)]
    page = browser.get(PATH).text
    assert f"/media/{ids[2]}" in page and ids[0] not in page and 'max="2" value="2"' in page
    earlier = browser.get(f"{PATH}/one?name=samples&type=image&at=0", headers={"HX-Request": "true"}).text
    assert "<html" not in earlier and f"/media/{ids[0]}" in earlier and "1 of 3" in earlier
    beyond = browser.get(f"{PATH}/one.json?name=samples&type=image&at=99").json()
    assert beyond["figure"]["shown"]["id"] == ids[2]
    whole = browser.get(f"{PATH}/one?name=samples&type=image&at=0").text
    assert "<html" in whole and f"/media/{ids[0]}" in whole
    assert browser.get(f"{PATH}/one?name=nope&type=image").status_code == 404


def test_pictures_are_served_with_their_type_in_a_cage_and_drawings_only_as_pictures(browser, run, anna):
    png, svg = run.show("a", PNG), run.show("b", b"<svg onload='alert(1)'/>", mime="image/svg+xml")
    html = run.show("c", f"{XSS}".encode(), mime="text/html", type="figure")
    page = browser.get(PATH).text
    assert (
        f'<img src="/api/v1/workspaces/{anna.workspace_id}/jobs/{run.id}/media/{svg}"' in page
        and "<svg onload" not in page
    )
    assert "This kind of file (text/html) cannot be shown" in page
    base = "/api/v1/workspaces/default/jobs/a-job/media"
    for ident, kind in ((png, "image/png"), (svg, "image/svg+xml"), (html, "application/octet-stream")):
        answer = browser.get(f"{base}/{ident}")
        assert answer.headers["content-type"] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
    assert browser.get(f"{base}/{html}").headers["content-disposition"].startswith("attachment")


def test_tables_are_tables_and_their_cells_are_text(browser, run):
    run.table(f"worst {XSS}", ["id", XSS], [[1, XSS], [None, {"a": 1}], [True, 0.5]], step=7)
    page = browser.get(PATH).text
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3 and "<script>alert" not in page
    figure = browser.get(f"{PATH}.json").json()["figures"][0]
    assert figure["table"]["rows"] == [["1", XSS], ["", '{"a": 1}'], ["true", "0.5"]]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"nonsense", b'{"columns": 3, "rows": [1]}', b'{"rows": []}', b"[" * 100_000]
)
def test_a_table_that_is_none_is_offered_for_download(browser, run, data):
    assert table(data) is None
    run.show("broken", data, mime="application/json", type="table")
    assert "download it to view it" in browser.get(PATH).text


def test_a_long_table_is_cut_and_says_so(browser, run):
    run.table("long", ["n"], [[n] for n in range(1000)])
    assert "and 800 rows more" in browser.get(PATH).text


def test_plotly_lines_become_data_for_our_own_charts(browser, run):
    packed = base64.b64encode(struct.pack("<3d", 0.5, 1.5, float("nan"))).decode()
    figure = {
        "data": [{"type": "scatter", "name": XSS, "x": [3, 1, 2], "y": [30, 10, None]},
                 {"y": {"dtype": "f8", "bdata": packed}}],
        "layout": {"title": {"text": "Curves"}, "xaxis": {"title": "epoch"}},
    }  # fmt: skip
    run.show("curves", json.dumps(figure).encode(), mime="application/vnd.plotly.v1+json", type="figure")
    drawn = browser.get(f"{PATH}.json").json()["figures"][0]["plot"]
    assert drawn["title"] == "Curves" and drawn["x_title"] == "epoch"
    assert drawn["traces"][0] == {"label": XSS, "x": [1.0, 2.0, 3.0], "y": [10.0, None, 30.0]}
    assert drawn["traces"][1] == {"label": "trace 1", "x": [0.0, 1.0, 2.0], "y": [0.5, 1.5, None]}
    assert "<script>alert" not in browser.get(PATH).text


@pytest.mark.parametrize(
    "figure",
    [
        {"data": []},
        {"data": [{"type": "heatmap", "z": [[1]]}]},
        {"data": [{"x": ["a", "b"], "y": [1, 2]}]},
        {"data": [{"x": [1], "y": [1, 2]}]},
        {"data": [{"y": {"dtype": "f8", "bdata": "!!"}}]},
        {"data": [{"y": {"dtype": "f8", "bdata": "AAAA"}}]},
        {"data": "nonsense"},
        [],
        {"data": [{"y": [1], "yaxis": "y2"}]},
    ],
)
def test_figures_we_do_not_draw_are_left_alone(figure):
    assert plot(json.dumps(figure).encode()) is None


def test_another_persons_figures_are_not_found(app, ctx, run, anna, berta):
    run.show("a", PNG)
    theirs = Browser(app).enter(ctx, berta).get(f"/w/{anna.workspace_id}/jobs/{run.id}/figures")
    assert theirs.status_code == 404


def test_histograms_and_texts_are_drawn_and_what_is_none_is_offered_as_a_file(browser, run):
    good = {"edges": [0, 1, 3], "counts": [2, 4], "total": 7, "below": 1, "mean": 1.5, "std": 0.5}
    run.show(
        "weights", json.dumps(good).encode(), mime="application/vnd.shoal.histogram+json", type="histogram", step=1
    )
    run.show(
        "samples of text",
        json.dumps({"texts": ["<b>one</b>", "two"]}).encode(),
        mime="application/vnd.shoal.texts+json",
        type="text",
    )
    page = browser.get("/w/default/jobs/a-job/figures").text
    assert page.count("<rect ") == 2 and "7 values, 1 outside" in page and "&lt;b&gt;one&lt;/b&gt;" in page
    assert figures.histogram(json.dumps(good).encode()).bars == [
        (0.0, 150.0, 333.33, 150.0),
        (333.33, 0.0, 666.67, 300.0),
    ]


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"edges": [0, 1], "counts": []}', b'{"edges": [1, 1], "counts": [1], "total": 1}', b'{"edges": [0, NaN], "counts": [1], "total": 1}',
     b'{"edges": [0, 1], "counts": [-1], "total": 1}', b'{"edges": "ab", "counts": "a", "total": 1}', b'{"edges": [0, 1e999], "counts": [1], "total": 1}'],
)  # fmt: skip
def test_what_is_no_histogram_is_not_drawn(data):
    assert figures.histogram(data) is None and figures.texts(data) is None
