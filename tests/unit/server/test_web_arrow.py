"""Parquet and Arrow files in previews: read by a process of their own, bounded, and never trusted."""

import importlib.util
import io

import pytest
from test_web_pages import add_dataset
from web_browser import Browser

from shoal.server.web.files import arrow

pyarrow = pytest.importorskip("pyarrow")
XSS = "<script>alert(1)</script>"


@pytest.fixture
def show(ctx, app, anna):
    """The preview of a file with these bytes, as its JSON twin and as a page."""
    browser = Browser(app).enter(ctx, anna)

    def of(name, data):
        add_dataset(ctx, anna, {name: data})
        path = f"/w/default/datasets/words?file={name}"
        return browser.get(path, headers={"Accept": "application/json"}).json()["preview"], browser.get(path).text

    return of


def table(rows=250):
    values = {
        "id": list(range(rows)),
        "text": [f"{XSS} {n}" for n in range(rows)],
        "raw": [b"x" * 100_000 if n == 0 else None for n in range(rows)],
        "inner": [{"a": [n, n + 1], "b": None} for n in range(rows)],
    }
    return pyarrow.table(values)


def parquet_of(some, group=50):
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(some, out, row_group_size=group, use_dictionary=False)
    return out.getvalue()


def arrow_of(some, make):
    out = io.BytesIO()
    with make(out, some.schema) as writer:
        writer.write_table(some)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather"])
def test_the_first_rows_are_shown_as_text(show, kind):
    bodies = {
        "parquet": lambda: parquet_of(table()),
        "arrow": lambda: arrow_of(table(), pyarrow.ipc.new_stream),
        "feather": lambda: arrow_of(table(), pyarrow.ipc.new_file),
    }
    found, html = show(f"part.{kind}", bodies[kind]())
    assert found["kind"] == "table"
    assert found["rows"][0][:2] == ["id (int64)", "text (string)"]
    assert found["rows"][1] == ["0", f"{XSS} 0", "100,000 bytes", "a: [0, 1], b: –"]
    assert 50 <= len(found["rows"]) - 1 <= 100
    assert "4 columns" in found["about"] and "4 columns" in html
    assert XSS not in html and "&lt;script&gt;" in html


def test_no_more_than_its_beginning_is_read(show, ctx, monkeypatch):
    data = parquet_of(pyarrow.table({"n": [float(n) * 1.1 for n in range(400_000)]}), 400_000)
    asked = []
    read = arrow._Bytes.read
    monkeypatch.setattr(arrow._Bytes, "read", lambda self, at, n: asked.append(n) or read(self, at, n))
    found, _ = show("big.parquet", data)
    assert found["about"] == "400,000 rows of 1 column"
    assert sum(asked) < len(data) // 4


@pytest.mark.parametrize("data", [b"\n", b"PAR1", b"PAR1" + b"\xff" * 5000 + b"PAR1", b"ARROW1\0\0" + b"\x7f" * 500])
@pytest.mark.parametrize("name", ["bad.parquet", "bad.arrow"])
def test_a_broken_file_is_said_to_be_one(show, name, data):
    found, html = show(name, data)
    assert found["kind"] == "none"
    assert found["about"].startswith("This file cannot be")
    assert "This file cannot be" in html


def test_a_reader_that_hangs_or_dies_is_ended(show, monkeypatch):
    monkeypatch.setattr(arrow, "TIMEOUT_S", 0.0)
    found, _ = show("slow.parquet", parquet_of(pyarrow.table({"n": [1, 2, 3]})))
    assert found["about"] == "This file cannot be shown; download it to view it."


def test_without_pyarrow_the_page_says_what_is_missing(show, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else real(name))
    found, html = show("some.parquet", parquet_of(pyarrow.table({"n": [1]})))
    assert found["kind"] == "none" and "pip install pyarrow" in found["about"] and "pip install pyarrow" in html
