import io
import json
import logging
import zlib

import numpy as np
import pytest
import torch

from shoal.sdk import media
from shoal.sdk.context import read_context
from shoal.sdk.media import HISTOGRAM, MediaTypeError, Shelf, figure, histogram, image, table, text
from shoal.sdk.spool import Spool


def pixels(data):
    """Decode our own kind of PNG: 8 bit, no filter. Gives an array of H×W×C."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, body, width, height, kind = 8, b"", 0, 0, 0
    while at < len(data):
        size, tag = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        chunk = data[at + 8 : at + 8 + size]
        assert zlib.crc32(tag + chunk) == int.from_bytes(data[at + 8 + size : at + 12 + size], "big")
        if tag == b"IHDR":
            width, height, kind = int.from_bytes(chunk[:4], "big"), int.from_bytes(chunk[4:8], "big"), chunk[9]
        body += chunk if tag == b"IDAT" else b""
        at += 12 + size
    channels = {0: 1, 4: 2, 2: 3, 6: 4}[kind]
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + width * channels)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)


RAMP = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (RAMP, RAMP),
        (RAMP[:, :, 0], RAMP[:, :, :1]),
        (RAMP / 255.0, RAMP),
        (RAMP.astype(np.float32), RAMP),
        (RAMP.astype(np.int64), RAMP),
        (torch.from_numpy(RAMP.copy()).permute(2, 0, 1), RAMP),
        (torch.from_numpy(RAMP.copy()).permute(2, 0, 1).float() / 255, RAMP),
        ((torch.from_numpy(RAMP.copy()).permute(2, 0, 1).float() / 255).requires_grad_(), RAMP),
        (np.array([[True, False]]), np.array([[[255], [0]]])),
        (np.array([[np.nan, 2.0]]), np.array([[[0], [2]]])),
    ],
    ids=["rgb", "grey", "0-1", "0-255", "ints", "chw", "chw 0-1", "with grad", "mask", "nan"],
)
def test_arrays_and_tensors_become_png(data, expected):
    shown = image(data)
    assert (shown.type, shown.mime) == ("image", "image/png")
    assert np.array_equal(pixels(shown.data), expected)


def test_encoded_bytes_and_files_are_kept_as_they_are(tmp_path):
    data = image(RAMP).data
    (tmp_path / "a.png").write_bytes(data)
    assert image(data) == image(tmp_path / "a.png") == image(str(tmp_path / "a.png")) == image(memoryview(data))
    assert image(b"\xff\xd8\xff\xe0 and so on").mime == "image/jpeg"
    assert image(b"<?xml?><svg></svg>").mime == "image/svg+xml"


def test_a_pillow_image_is_recognised_by_what_it_can_do():
    class Picture:
        mode = "RGB"

        def save(self, out, format):
            out.write(format.encode())

    assert image(Picture()) == ("image", "image/png", b"PNG")


@pytest.mark.parametrize("data", [b"no image", 5, np.zeros((2, 2, 7)), np.zeros(4), np.zeros((0, 3)), object()])
def test_what_is_no_image_is_a_type_error(data):
    with pytest.raises(MediaTypeError):
        image(data)


class _Figure:
    def savefig(self, out, **options):
        out.write(options["format"].encode())


class _Plotly:
    def to_plotly_json(self):
        return {}

    def to_json(self):
        return '{"data":[]}'


class _Axes:
    figure = _Figure()


class _Pyplot:
    @staticmethod
    def gcf():
        return _Figure()


class _Html:
    def to_html(self):
        return "<p>"


@pytest.mark.parametrize(
    ("given", "mime", "data"),
    [
        (_Figure(), "image/png", b"png"),
        (_Axes(), "image/png", b"png"),
        (_Pyplot, "image/png", b"png"),
        (_Plotly(), media.PLOTLY, b'{"data":[]}'),
        (_Html(), "text/html", b"<p>"),
    ],
)
def test_figures_are_recognised_by_what_they_can_do(given, mime, data):
    assert figure(given) == ("figure", mime, data)


def test_what_is_no_figure_is_a_type_error():
    with pytest.raises(TypeError, match="matplotlib or plotly"):
        figure(3)


class _Frame:
    columns = ("a", "b")

    def itertuples(self, index, name):
        assert index is False and name is None
        return iter([(1, float("nan")), (np.int64(2), "x")])


@pytest.mark.parametrize(
    "arguments",
    [
        (["a", "b"], [[1, float("nan")], (np.int64(2), "x")]),
        (_Frame(), None),
        ([{"a": 1, "b": float("nan")}, {"b": "x", "a": torch.tensor(2)}], None),
    ],
)
def test_tables_come_from_rows_mappings_and_data_frames(arguments):
    assert json.loads(table(*arguments).data) == {"columns": ["a", "b"], "rows": [[1, "nan"], [2, "x"]]}


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(MediaTypeError, match=r"row 1 .* 3 cells for 2 columns"):
        table(["a", "b"], [[1, 2], [1, 2, 3]])
    with pytest.raises(MediaTypeError, match="columns and rows"):
        table(["a", "b"], None)


@pytest.fixture
def shelf(tmp_path):
    context = read_context("t", tmp_path, {})
    spool = Spool(context)
    yield Shelf(context, spool), spool
    spool.close()


def test_a_file_is_there_before_it_is_told_of_and_names_never_clash(shelf):
    shelf, spool = shelf
    for name in ("a/b", "a b", "../../etc"):
        shelf.keep(name, 7, image(RAMP))
    records = [json.loads(line) for line in spool.path.read_bytes().splitlines()]
    assert [r["name"] for r in records] == ["a/b", "a b", "../../etc"]
    assert len({r["file"] for r in records}) == 3
    for record in records:
        file = (spool.path.parent / record["file"]).resolve()
        assert file.parent == spool.path.parent / "media"
        assert file.read_bytes() == image(RAMP).data


def test_what_is_too_large_is_left_out_with_a_warning(shelf, monkeypatch, caplog):
    shelf, spool = shelf
    monkeypatch.setattr(media, "MAX_BYTES", 10)
    with caplog.at_level(logging.WARNING):
        shelf.keep("big", 1, image(RAMP))
    assert "10 MB limit" in caplog.text
    spool.write("p", i=1)
    assert [json.loads(line)["k"] for line in spool.path.read_bytes().splitlines()] == ["w", "p"]
    assert not list(spool.path.parent.glob("media/*"))


def test_a_real_matplotlib_figure_if_there_is_one():
    pytest.importorskip("matplotlib").use("Agg")
    import matplotlib.pyplot as plt

    plot, axes = plt.subplots()
    axes.plot([1, 2])
    assert figure(plot).data.startswith(b"\x89PNG")
    plt.close(plot)


def test_pillow_reads_what_we_write_if_there_is_one():
    pillow = pytest.importorskip("PIL.Image")
    assert np.array_equal(np.asarray(pillow.open(io.BytesIO(image(RAMP).data))), RAMP)


def test_a_histogram_counts_every_value_and_says_which_are_outside_or_no_numbers():
    values = np.concatenate([np.arange(100.0), [np.nan, np.inf, -5.0, 500.0]])
    made = histogram(torch.tensor(values), 10, (0.0, 100.0))
    told = json.loads(made.data)
    assert (made.type, made.mime) == ("histogram", HISTOGRAM)
    assert told["counts"] == [10] * 10 and told["edges"] == [10.0 * n for n in range(11)]
    assert (told["total"], told["below"], told["above"], told["not_finite"]) == (104, 1, 1, 2)
    assert sum(json.loads(histogram(values, 7, None).data)["counts"]) == 102
    assert json.loads(histogram([3, 3], 4, None).data)["edges"][0] == 2.5
    assert json.loads(histogram([], 4, None).data)["counts"] == [0] * 4


@pytest.mark.parametrize(("data", "bins"), [(["a"], 4), ([1.0], 0), ([1.0], 10**6), (object(), 4)])
def test_what_has_no_histogram_is_refused(data, bins):
    with pytest.raises(MediaTypeError):
        histogram(data, bins, None)


def test_texts_are_kept_as_they_are():
    assert json.loads(text("one <b>").data) == {"texts": ["one <b>"]}
    assert json.loads(text(["ä", "b\n"]).data) == {"texts": ["ä", "b\n"]}
    with pytest.raises(MediaTypeError):
        text([1])
