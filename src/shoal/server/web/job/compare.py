"""Comparison of several jobs side by side: the settings in which they differ, and the best job for each metric."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from shoal.core.errors import NotFound
from shoal.core.jobs import JobView
from shoal.core.metrics import MetricName, Value
from shoal.core.run_params import arguments
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.metrics import reads as metric_reads
from shoal.server.policy import Access
from shoal.server.web.files import previews
from shoal.server.web.format import compact, filesize
from shoal.server.web.redact import Redactor

MOST_JOBS = 16
"""Maximum number of jobs: more columns than these nobody reads."""
MOST_METRICS = 200
_MOST_NAMED = 5
_MOST_FILES = 30
_HIGHER = re.compile(
    r"acc|accuracy|precision|recall|f1|auc|bleu|rouge|meteor|map|mrr|ndcg|iou|dice|psnr|ssim|r2|reward|return|score|win_rate"
    r"|throughput|per_s(ec(ond)?)?|mfu|tokens|samples",
    re.IGNORECASE,
)
_NEUTRAL = re.compile(
    r"lr|learning_rate|epochs?|steps?|(grad|param|weight)_?norm|norm|momentum|weight_decay|beta\d?|temperature|scale|progress",
    re.IGNORECASE,
)
"""Names of metrics for which neither low nor high values are better."""
_SPEC = {
    "checkpoint": "Starts from",
    "mounts": "Mounts",
    "accels": "Slots per node",
    "device": "Kind of slots",
    "gpu": "GPU model",
    "gpu_memory_gb": "GPU memory",
    "mixed_models": "Different GPU models",
    "labels": "Labels of machines",
    "max_restarts": "Restarts",
    "priority": "Priority",
    "time_limit_s": "Time limit (s)",
    "stall_timeout_s": "Stall timeout (s)",
    "on_stall": "When it hangs",
    "grace_s": "Grace period (s)",
    "one_device_per_worker": "One device per worker",
    "engine_options": "Options of the cluster",
    "budget": "Budget",
    "memory": "Memory",
    "cpus": "CPUs",
    "disk": "Disk",
    "shm": "Shared memory",
    "keep_last": "Checkpoints kept",
    "keep_best": "Best kept by",
    "launcher": "Launcher",
    "allow_torch_change": "May replace torch",
}


class Setting(View):
    section: str
    name: str
    values: list[str | None]
    """One value per job; None if the job does not have the setting."""
    differs: bool


class Cell(View):
    last: Value
    best: float | None
    lowest: float | None
    highest: float | None
    is_best: bool = False


Better = Literal["lowest", "highest"]


class MetricRow(View):
    name: str
    better: Better | None
    """End at which its values are best, guessed from its name; None if neither end is better."""
    cells: list[Cell | None]


class Comparison(View):
    jobs: list[JobView]
    settings: list[Setting]
    metrics: list[MetricRow]
    more_metrics: int
    notes: list[str]
    """Requested jobs that could not be shown, with the reason."""


def compare(ctx: Context, access: Access, references: Sequence[str]) -> Comparison:
    found: dict[str, JobView] = {}
    notes, omitted = [], []
    for reference in dict.fromkeys(r.strip() for r in references if r.strip()):
        try:
            view = jobs.get(ctx, access, reference)
        except NotFound as error:
            notes.append(error.message)
            continue
        if len(found) == MOST_JOBS and view.id not in found:
            omitted.append(view.name)
            continue
        found[view.id] = view
    if omitted:
        names = ", ".join(omitted[:_MOST_NAMED]) + (" and others" if len(omitted) > _MOST_NAMED else "")
        notes.append(f"{MOST_JOBS} jobs are shown at once; {len(omitted)} more are left out: {names}.")
    views = list(found.values())
    rows = _metrics([metric_reads.names(ctx, access, view.id) for view in views])
    return Comparison(
        jobs=views,
        settings=_settings(ctx, access, views),
        metrics=rows[:MOST_METRICS],
        more_metrics=max(0, len(rows) - MOST_METRICS),
        notes=notes,
    )


def better(name: str) -> Better | None:
    """Guess from a metric's name whether low or high values are better; for a loss always low."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    ends = (*words, "_".join(words[-2:]), "_".join(words[-3:]))
    if any(word in ("loss", "error", "err", "perplexity", "ppl") for word in words):
        return "lowest"
    if any(_HIGHER.fullmatch(part) for part in ends):
        return "highest"
    return None if any(_NEUTRAL.fullmatch(part) for part in (ends[-3], *ends[-2:])) else "lowest"


def _metrics(told: list[list[MetricName]]) -> list[MetricRow]:
    by_job = [{m.name: m for m in metrics} for metrics in told]
    names = sorted({name for metrics in by_job for name in metrics}, key=lambda n: ("loss" not in n.lower(), n))
    rows = []
    for name in names:
        end = better(name)
        cells = [_cell(metrics.get(name), end) for metrics in by_job]
        numbers = [c.best for c in cells if c and c.best is not None]
        top = (max if end == "highest" else min)(numbers) if len(numbers) > 1 else None
        for cell in cells:
            if cell and top is not None:
                cell.is_best = cell.best == top
        rows.append(MetricRow(name=name, better=end, cells=cells))
    return rows


def _cell(metric: MetricName | None, end: Better | None) -> Cell | None:
    if metric is None:
        return None
    best = {"highest": metric.max, "lowest": metric.min, None: None}[end]
    return Cell(last=metric.last, best=best, lowest=metric.min, highest=metric.max)


def _settings(ctx: Context, access: Access, views: list[JobView]) -> list[Setting]:
    hide = Redactor.of(ctx, access)
    columns = [dict(settings_of(view, metric_reads.config(ctx, access, view.id), hide)) for view in views]
    for column, code in zip(columns, _code(ctx, access, views), strict=True):
        column |= {("Code", path): text for path, text in code.items()}
    keys = sorted(dict.fromkeys(key for column in columns for key in column), key=lambda k: _SECTIONS.index(k[0]))
    rows = []
    for section, name in keys:
        values = [column.get((section, name)) for column in columns]
        rows.append(Setting(section=section, name=name, values=values, differs=len(set(values)) > 1))
    return rows


_SECTIONS = ("Config", "Arguments", "Job", "Variables", "Secrets", "Code")
Item = tuple[tuple[str, str], str]


def settings_of(view: JobView, config: Mapping[str, Any], hide: Redactor) -> Iterator[Item]:
    """Yield ((section, name), value) of all settings of a job, with secrets hidden."""
    spec = view.spec
    for name, value in sorted(_flat(hide.data(config)).items()):
        yield ("Config", name), value
    words = hide.words(spec.entry)
    yield ("Job", "Script"), words[0]
    for name, value in arguments(words[1:]).items():
        yield ("Arguments", name), value
    yield ("Job", "Datasets"), ", ".join(spec.datasets)
    same = spec.min_nodes == spec.max_nodes
    yield ("Job", "Nodes"), str(spec.max_nodes) if same else f"{spec.min_nodes} to {spec.max_nodes}"
    for field, title in _SPEC.items():
        value = getattr(spec, field)
        if value is not None:
            yield ("Job", title), str(value)
    for name, value in hide.env(spec.env).items():
        yield ("Variables", name), value
    for name, value in spec.secrets.items():
        yield ("Secrets", name), value


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = compact(value)
    return found


def _code(ctx: Context, access: Access, views: list[JobView]) -> list[dict[str, str]]:
    """Return, for each job, path → size and short hash of the files that are not the same in all jobs."""
    trees = []
    for view in views:
        files = previews.of_job(ctx, access, view.id).manifest.files
        hashes = {f.path: f.chunks[0].hash[:8] if len(f.chunks) == 1 else f"{len(f.chunks)} parts" for f in files}
        trees.append(
            {f.path: (tuple(c.hash for c in f.chunks), f"{filesize(f.size)} · {hashes[f.path]}") for f in files}
        )
    paths = sorted({path for tree in trees for path in tree})
    differing = [path for path in paths if len({tree.get(path, ((), ""))[0] for tree in trees}) > 1][:_MOST_FILES]
    return [{path: tree[path][1] for path in differing if path in tree} for tree in trees]
