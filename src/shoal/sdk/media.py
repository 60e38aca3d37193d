"""Images, figures, tables, histograms and texts as files beside the spool.

Pillow, matplotlib, plotly and pandas objects are recognised by their methods, so none of these is imported; only arrays and
tensors need numpy.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core import records
from shoal.core.errors import UsageError
from shoal.sdk.context import Context
from shoal.sdk.spool import Spool, number

logger = logging.getLogger(__name__)

MAX_BYTES = 10 * 1024 * 1024
PLOTLY = "application/vnd.plotly.v1+json"
HISTOGRAM = "application/vnd.shoal.histogram+json"
TEXTS = "application/vnd.shoal.texts+json"
MAX_BINS = 1000
_ENDINGS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "application/json": "json",
    PLOTLY: "plotly.json",
    "text/html": "html",
    HISTOGRAM: "histogram.json",
    TEXTS: "texts.json",
}


class Media(NamedTuple):
    """An image, figure or table in its file format."""

    type: str
    mime: str
    data: bytes


class MediaTypeError(UsageError, TypeError):
    """This cannot be shown."""

    code = "media_type"


class Shelf:
    """Writes media files and, once a file is complete, its record. A disk error loses the file, not the training."""

    def __init__(self, context: Context, spool: Spool):
        self._context, self._spool = context, spool
        self._serial = 0

    def keep(self, name: str, step: int, shown: Media) -> None:
        if len(shown.data) > MAX_BYTES:
            size = f"{len(shown.data) / 2**20:.1f} MB"
            self._warn("media_too_large", f"{shown.type} {name!r} ({size}) exceeds the 10 MB limit and is not shown")
            return
        file = Path("media") / file_name(name, step, self._serial, shown.mime)
        self._serial += 1
        try:
            self._context.make_dirs()
            (self._context.spool_dir / "media").mkdir(exist_ok=True)
            (self._context.spool_dir / file).write_bytes(shown.data)
        except OSError as error:
            self._warn("media_failed", f"{shown.type} {name!r} could not be written: {error}")
            return
        self._spool.put(records.Media(step=step, name=name, type=shown.type, file=str(file), mime=shown.mime))

    def _warn(self, code: str, text: str) -> None:
        logger.warning("shoal: %s", text)
        self._spool.put(records.Warning(code=code, text=text))


def image(data: Any) -> Media:
    """Make an image from a path, encoded bytes, a Pillow image, or an array of H×W, H×W×C or C×H×W."""
    if isinstance(data, str | os.PathLike):
        data = Path(data).read_bytes()
    if isinstance(data, bytes | bytearray | memoryview):
        return Media("image", _sniff(bytes(data)), bytes(data))
    if hasattr(data, "save") and hasattr(data, "mode"):
        out = io.BytesIO()
        data.save(out, format="PNG")
        return Media("image", "image/png", out.getvalue())
    if getattr(data, "shape", None) is not None:
        return Media("image", "image/png", _png_of_array(data))
    raise MediaTypeError(
        f"run.log_image takes a path, encoded bytes, a Pillow image, a numpy array or a tensor, not {_kind(data)}"
    )


def figure(figure: Any) -> Media:
    """Make a figure from matplotlib (a figure, axes or pyplot), plotly, or an object with `to_html`."""
    if hasattr(figure, "to_plotly_json") and hasattr(figure, "to_json"):
        return Media("figure", PLOTLY, str(figure.to_json()).encode())
    if hasattr(figure, "gcf"):
        figure = figure.gcf()
    target: Any = figure if hasattr(figure, "savefig") else getattr(figure, "figure", None)
    if hasattr(target, "savefig"):
        out = io.BytesIO()
        target.savefig(out, format="png", bbox_inches="tight")
        return Media("figure", "image/png", out.getvalue())
    if hasattr(figure, "to_html"):
        return Media("figure", "text/html", str(figure.to_html()).encode())
    raise MediaTypeError(f"run.log_figure takes a matplotlib or plotly figure, not {_kind(figure)}")


def table(columns: Any, rows: Iterable[Sequence[Any]] | None) -> Media:
    """Make a table from column names and rows, a list of mappings, or a pandas or polars data frame."""
    if rows is None:
        columns, rows = _columns_and_rows(columns)
    names = [str(c) for c in columns]
    cells = []
    for at, row in enumerate(rows):
        values = [_cell(v) for v in row]
        if len(values) != len(names):
            raise MediaTypeError(f"row {at} of the table has {len(values)} cells for {len(names)} columns")
        cells.append(values)
    data = json.dumps({"columns": names, "rows": cells}, separators=(",", ":"), ensure_ascii=False)
    return Media("table", "application/json", data.encode())


def histogram(data: Any, bins: int, span: tuple[float, float] | None) -> Media:
    """Make a histogram from a tensor, an array or numbers, with equal intervals."""
    if not 1 <= bins <= MAX_BINS:
        raise MediaTypeError(f"a histogram has 1 to {MAX_BINS} bins, not {bins}")
    import numpy as np

    if hasattr(data, "detach"):
        data = data.detach().to("cpu").float().numpy()
    try:
        values = np.asarray(data, np.float64).ravel()
    except (TypeError, ValueError):
        raise MediaTypeError(f"run.log_histogram takes a tensor, an array or numbers, not {_kind(data)}") from None
    finite = values[np.isfinite(values)]
    low, high = span if span is not None else (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if not low < high:  # one value: an interval around it
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(finite, bins, (low, high))
    told = {
        "edges": edges.tolist(), "counts": counts.tolist(), "total": len(values), "below": int((finite < low).sum()),
        "above": int((finite > high).sum()), "not_finite": len(values) - len(finite),
        "mean": float(finite.mean()) if len(finite) else None, "std": float(finite.std()) if len(finite) else None,
    }  # fmt: skip
    return Media("histogram", HISTOGRAM, json.dumps(told, separators=(",", ":")).encode())


def text(texts: str | Sequence[str]) -> Media:
    """Make a text, or several."""
    found = [texts] if isinstance(texts, str) else list(texts)
    if not all(isinstance(one, str) for one in found):
        raise MediaTypeError(f"run.log_text takes a text or a list of texts, not {_kind(texts)}")
    return Media("text", TEXTS, json.dumps({"texts": found}, ensure_ascii=False).encode())


def file_name(name: str, step: int, serial: int, mime: str) -> str:
    """Return a readable file name; `serial` keeps names apart that differ only in replaced characters."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:80] or "media"
    return f"{safe}-{step}-{serial}.{_ENDINGS.get(mime, 'bin')}"


def png(width: int, height: int, channels: int, pixels: bytes) -> bytes:
    """Return an 8-bit PNG of 1 (grey), 2 (grey and alpha), 3 (RGB) or 4 (RGBA) channels."""
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    row = width * channels
    lines = b"".join(b"\0" + pixels[i : i + row] for i in range(0, row * height, row))
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body)) for tag, body in parts
    )


def _sniff(data: bytes) -> str:
    for magic, mime in ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif")):
        if data.startswith(magic):
            return mime
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if b"<svg" in data[:1000]:
        return "image/svg+xml"
    raise MediaTypeError("these bytes are not a PNG, JPEG, GIF, WebP or SVG image")


def _png_of_array(data: Any) -> bytes:
    import numpy as np

    is_tensor = hasattr(data, "detach")
    array = np.asarray(data.detach().to("cpu").float().numpy() if is_tensor and not _whole(data) else _host(data))
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and (is_tensor or array.shape[2] not in (1, 3, 4)):
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 2, 3, 4) or 0 in array.shape:
        shape = "×".join(map(str, array.shape))
        raise MediaTypeError(f"an image is H×W, H×W×C or C×H×W with at most 4 channels, not {shape}")
    if array.dtype.kind == "b":
        array = array * np.uint8(255)
    elif array.dtype.kind == "f":
        array = np.nan_to_num(array, nan=0.0, posinf=1.0, neginf=0.0)
        # Values up to 1 are fractions of white, as in torchvision and matplotlib; larger ones are 0 to 255.
        array = array * 255.0 + 0.5 if array.size and array.max() <= 1.0 else array
    array = np.ascontiguousarray(np.clip(array, 0, 255).astype(np.uint8))
    height, width, channels = array.shape
    return png(width, height, channels, array.tobytes())


def _whole(tensor: Any) -> bool:
    return not tensor.is_floating_point()


def _host(data: Any) -> Any:
    return data.detach().to("cpu").numpy() if hasattr(data, "detach") else data


def _columns_and_rows(data: Any) -> tuple[list[str], Iterable[Sequence[Any]]]:
    if hasattr(data, "columns") and hasattr(data, "itertuples"):
        return [str(c) for c in data.columns], data.itertuples(index=False, name=None)
    if hasattr(data, "columns") and hasattr(data, "iter_rows"):
        return [str(c) for c in data.columns], data.iter_rows()
    rows = list(data) if isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping) else []
    if rows and all(isinstance(r, Mapping) for r in rows):
        columns = list(dict.fromkeys(str(k) for r in rows for k in r))
        return columns, [[r.get(c) for c in columns] for r in rows]
    raise MediaTypeError(
        f"run.log_table takes columns and rows, a list of mappings or a data frame, not {_kind(data)} alone",
        hint='run.log_table("confusion", ["true", "predicted", "count"], rows)',
    )


def _cell(value: Any) -> Any:
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if value - value == 0.0 else number(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
