"""Export of a job as one HTML file that can be viewed offline: charts, settings, code, the end of the log.

The file may be given to anyone, so it contains no secrets, people or paths. Its content security policy allows only its own
script.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from shoal.core.errors import Internal
from shoal.core.jobs import JobView, LogLine
from shoal.core.metrics import MediaView, MetricName
from shoal.core.schema import View
from shoal.server.artifacts import checkpoints, media
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.metrics import reads as metric_reads
from shoal.server.policy import Access
from shoal.server.web.files import previews
from shoal.server.web.job import code, history, logs, system_metrics
from shoal.server.web.redact import Redactor
from shoal.server.web.render import STATIC, environment

SMOOTHING = (0.6, 0.9, 0.98)
MOST_METRICS, MANY_POINTS, FEW_POINTS = 300, 600, 200
LOG_LINES, LOG_CHARS = 500, 512 << 10
MOST_FILES, FILE_CHARS, CODE_CHARS, COLOURED_CHARS = 100, 64 << 10, 1 << 20, 128 << 10
MOST_PICTURES, PICTURE_BYTES, PICTURES_BYTES = 24, 1 << 20, 6 << 20
MOST_CHECKPOINTS = 200
_PERSON = re.compile(r" by \S+@\S+")
_RASTER = ("image/png", "image/jpeg", "image/gif", "image/webp")
_SCRIPTS = (
    "js/theme.js",
    "vendor/uPlot.iife.min.js",
    "js/times.js",
    "js/units.js",
    "js/charts.js",
    "js/ansi.js",
    "js/share.js",
)
_STYLES = ("vendor/uPlot.min.css", "css/app.css")


@dataclass(frozen=True, slots=True)
class Shared:
    name: str
    body: bytes


class SharedFile(View):
    path: str
    size: int
    text: str | None
    """Content; None if the file is not text or did not fit."""
    coloured: bool = False


class SharedPicture(View):
    name: str
    step: int
    uri: str


def share(ctx: Context, access: Access, job: str) -> Shared:
    """Return the job as one HTML file."""
    hide = Redactor.of(ctx, access)
    view = jobs.get(ctx, access, job)
    known = metric_reads.names(ctx, access, view.id)
    config = hide.data(metric_reads.config(ctx, access, view.id))
    shown = _hidden(view, hide)
    values: dict[str, Any] = {
        "job": shown,
        "smoothing": SMOOTHING,
        "config": config,
        "metrics": [_summary(m, hide) for m in known],
        "environment": system_metrics.environment(ctx, access, view.id),
        "rerun": history.rerun_command(shown),
        "files": _files(ctx, access, view, hide),
        "checkpoints": checkpoints.list_checkpoints(ctx, access, view.id)[::-1][:MOST_CHECKPOINTS],
        "pictures": _pictures(ctx, access, view.id, hide),
        "data": _data(_curves(ctx, access, view.id, known), _log(ctx, access, view.id), hide),
        "assets": assets(),
    }
    return Shared(view.name, environment().get_template("share.html").render(values).encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Assets:
    """Script and style as embedded in the file, and the content security policy with their hashes."""

    script: Markup
    style: Markup
    logo: str
    policy: str


@functools.cache
def assets() -> Assets:
    try:
        script = "\n".join(_plain_script((STATIC / path).read_text("utf-8")) for path in _SCRIPTS)
        style = "\n".join((STATIC / path).read_text("utf-8") for path in _STYLES)
    except FileNotFoundError as error:
        raise Internal("The console's charts are not installed.", hint="python console/vendor.py") from error
    script = f"{{\n{script}\n}}"
    if re.search(r"</(?:script|style)|<!--", script + style, re.IGNORECASE):
        raise Internal("The console's own files cannot be embedded in a page.")
    logo = base64.b64encode((STATIC / "img/logo.svg").read_bytes()).decode()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Assets(Markup(script), Markup(style), f"data:image/svg+xml;base64,{logo}", policy)  # noqa: S704


def _plain_script(text: str) -> str:
    """Return a JavaScript module without its imports and exports, for one script in which all names are visible."""
    return re.sub(r"^import [^;]*;\n", "", re.sub(r"^export ", "", text, flags=re.MULTILINE), flags=re.MULTILINE)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _hidden(view: JobView, hide: Redactor) -> JobView:
    """Return the job without secrets in its texts, and without its machines and its owner."""
    events = [
        e.model_copy(update={"message": hide.text(_PERSON.sub("", e.message)), "data": hide.data(e.data)})
        for e in view.events
    ]
    public = ("kind", "url", "commit", "revision", "files", "size")
    return code.hidden(view, hide).model_copy(
        update={
            "events": events,
            "source": {k: hide.data(v) for k, v in view.source.items() if k in public},
            "reason": view.reason and hide.text(view.reason),
            "title": hide.text(view.title),
            "tags": [hide.text(tag) for tag in view.tags],
            "note": hide.text(view.note),
            "description": hide.text(view.description),
            "created_by": "",
            "attempt_list": [],
        }
    )


def _summary(metric: MetricName, hide: Redactor) -> MetricName:
    return metric.model_copy(update={"name": hide.text(metric.name), "last": hide.data(metric.last)})


@dataclass(frozen=True, slots=True)
class _Curves:
    """Charts of a shared job. The file has no server to smooth curves, so it contains every level of `SMOOTHING`."""

    points: dict[str, Any]
    smoothed: dict[str, dict[str, Any]]
    """Metric → x values, and a list of values for each level of smoothing."""


def _curves(ctx: Context, access: Access, job: str, known: list[MetricName]) -> _Curves:
    names = [m.name for m in known[:MOST_METRICS]]
    if not names:
        return _Curves({}, {})
    count = MANY_POINTS if len(names) <= MOST_METRICS // 6 else FEW_POINTS
    read = functools.partial(
        metric_reads.read, ctx, access, job, names=names, points=count, axis="step", after=0, ghosts=False
    )
    found = [json.loads(read(smoothing=weight)) for weight in SMOOTHING]
    smoothed = {
        name: {"x": [x for x, _ in rows], "levels": [[v for _, v in one["smoothed"].get(name, [])] for one in found]}
        for name, rows in found[0]["smoothed"].items()
    }
    return _Curves(found[0]["metrics"], smoothed)


def _log(ctx: Context, access: Access, job: str) -> list[LogLine]:
    lines = logs.tail(ctx, access, job, logs.Filter(), wanted=LOG_LINES).lines[-LOG_LINES:]
    size = 0
    for index in range(len(lines) - 1, -1, -1):
        size += len(lines[index].text)
        if size > LOG_CHARS:
            return lines[index + 1 :]
    return lines


def _data(curves: _Curves, log: list[LogLine], hide: Redactor) -> Markup:
    """Return JSON for the script, with `<`, `>` and `&` escaped so that it cannot end its HTML element."""
    plain = {
        "metrics": {hide.text(name): points for name, points in curves.points.items()},
        "smoothed": {hide.text(name): lines for name, lines in curves.smoothed.items()},
        "log": [[round(line.at, 3), line.rank, line.stream, hide.text(line.text)] for line in log],
    }
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=True)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


def _files(ctx: Context, access: Access, view: JobView, hide: Redactor) -> list[SharedFile]:
    """Return the files of the code: first the script that is run, then the others by name, as long as they fit."""
    files = previews.of_job(ctx, access, view.id)
    first = code.entry_file(view, files)
    entries = sorted(files.manifest.files, key=lambda f: (f.path != first, f.path))[:MOST_FILES]
    room, coloured, found = CODE_CHARS, COLOURED_CHARS, []
    for entry in entries:
        text = None
        if entry.size <= min(room, FILE_CHARS):
            preview = previews.preview(ctx, files, entry.path)
            text = hide.text(preview.text) if preview.kind == "text" else None
        room -= len(text or "")
        coloured -= len(text or "")
        found.append(SharedFile(path=hide.text(entry.path), size=entry.size, text=text, coloured=coloured >= 0))
    return found


def _pictures(ctx: Context, access: Access, job: str, hide: Redactor) -> list[SharedPicture]:
    newest: dict[str, MediaView] = {}
    for medium in media.list_media(ctx, access, job):
        if medium.mime in _RASTER and medium.size <= PICTURE_BYTES:
            newest[medium.name] = medium
    room, found = PICTURES_BYTES, []
    for name, medium in sorted(newest.items())[:MOST_PICTURES]:
        if medium.size > room:
            continue
        room -= medium.size
        data = base64.b64encode(b"".join(media.content(ctx, access, job, medium.id).body)).decode()
        found.append(SharedPicture(name=hide.text(name), step=medium.step, uri=f"data:{medium.mime};base64,{data}"))
    return found
