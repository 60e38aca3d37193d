"""Metrics read off a worker's output: dict lines, `epoch 0 loss 1.17`, tqdm postfixes, Keras lines. They are marked as such.

Only for scripts that log nothing with the SDK. Reading stops for good once the SDK reports (`RunReports.has_metrics`).
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable

from shoal.agent.workers.lines import TokenBucket
from shoal.core.records import Kind

SWITCH = "SHOAL_LOG_METRICS"
"""Environment variable of a job; 0 turns this off."""
HOLD_S = 3.0
"""Seconds for which a point is kept back, within which a script that uses the SDK is recognised."""
_LINES_PER_S = 50.0
_MOST_SERIES = 100
_MOST_BYTES = 4096

_NUM = rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)\b"
_STEM = (
    rb"loss|acc(?:uracy)?|perplexity|ppl|f1|auc|auroc|bleu|rouge\w?|wer|cer|mse|mae|rmse|m?iou|m?ap|error|precision|recall"
    rb"|psnr|ssim|fid|elbo|kl|nll|bpb|bpc|reward|return|r2"
)
_BESIDE = rb"lr|learning[_ ]rate|grad[_ ]norm|momentum|weight_decay|tokens_per_sec(?:ond)?|it/s"
_PHASES = {
    b"train": "train", b"training": "train", b"val": "val", b"valid": "val", b"validation": "val",
    b"test": "test", b"testing": "test", b"eval": "eval", b"evaluation": "eval", b"dev": "dev",
}  # fmt: skip
_PHASE = rb"|".join(sorted(_PHASES, reverse=True))
_QUICK = re.compile(_STEM, re.IGNORECASE)
_PAIR = re.compile(
    rb"(?<![\w.])(?:(?P<phase>" + _PHASE + rb")[\s_/-]+)?(?:(?:avg|average|mean|running|total|smoothed)\.?[\s_]+)?"
    rb"(?P<name>(?:[A-Za-z]\w{0,30}[_/])??(?:" + _STEM + rb")(?:@\d+|\d)?|" + _BESIDE + rb")"
    rb"(?:\s*\((?:"
    + _PHASE
    + rb")\))?(?P<sign>\s*[:=]\s*|\s+)(?P<value>"
    + _NUM
    + rb")(?:/(?P<of>\d+))?(?![\w])(?!\.\d)",
    re.IGNORECASE,
)
_NEEDS_SIGN = re.compile(rb"error|return|reward|precision|recall|kl|m?ap|r2|momentum|elbo", re.IGNORECASE)
"""Words that are followed by other numbers in ordinary sentences ("error 404"), so that a colon or = must be between."""
_NOT_NOW = re.compile(
    rb"(?:best|lowest|highest|min(?:imum)?|max(?:imum)?|target|threshold|prev(?:ious)?|old|initial|final|expected)\W*$",
    re.IGNORECASE,
)
_LINE_PHASE = re.compile(rb"\b(val(?:id(?:ation)?)?|test(?:ing)?|eval(?:uation)?)\b", re.IGNORECASE)
_DICT = re.compile(rb"\{\s*[\"'].*\}\s*$")
_ITEM = re.compile(rb"[\"']([\w./@ -]{1,100})[\"']\s*:\s*[\"']?(" + _NUM + rb")[\"']?(?=\s*[,}])", re.IGNORECASE)
_POSTFIX = re.compile(rb"\|\s*\d+/\d+ \[[^\]]*?[\d?](?:it|s|\w+)/\w+,\s*(?P<pairs>[^\]]*=[^\]]*)\]")
_POSTFIX_PAIR = re.compile(rb"(?:^|,)\s*([A-Za-z][\w./@-]{0,99})\s*=\s*(" + _NUM + rb")(?=\s*(?:,|$))", re.IGNORECASE)

_COUNTERS = (
    re.compile(rb"\|\s*(\d{1,12})/(\d{1,12}) \["),
    re.compile(
        rb"\b(?:global[ _])?(?:step|iter|iteration|batch|update)e?s?\s*[:=#]?\s*[\[(]?\s*(\d{1,12})(?:\s*(?:/|of)\s*(\d{1,12}))?\b",
        re.IGNORECASE,
    ),
    re.compile(rb"\[\s*(\d{1,12})\s*/\s*(\d{1,12})(?=[\]\s(,:])(?!\s+\d\d?:\d\d)"),
    re.compile(rb"^\s*(\d{1,12})/(\d{1,12})\s"),
)
_EPOCH = re.compile(rb"\bep(?:och)?\s*[:=#]?\s*[\[(]?\s*(\d{1,9})\b(?!\.\d)", re.IGNORECASE)
_STEP_KEYS = ("step", "global_step", "iter", "iteration")
_NOT_METRICS = {*_STEP_KEYS, "epoch", "v_num", "total", "batch", "epochs", "steps"}


class LogMetrics:
    """Collects points from the lines of one rank. The capture thread feeds; another thread takes (`deque` allows that)."""

    def __init__(self, position: Callable[[], int | None] = lambda: None, redact: Callable[[bytes], bytes] = bytes):
        """`position` returns the step that the job's progress bar shows, for lines without a counter of their own."""
        self._position, self._redact = position, redact
        self._series: dict[str, _Series] = {}
        self._found: deque[tuple[float, bytes]] = deque(maxlen=10_000)
        self._bucket: TokenBucket | None = None

    def feed(self, line: bytes, now: float) -> bool:
        """Read a line; return whether it contained a metric."""
        if len(line) > _MOST_BYTES or not _QUICK.search(line):
            return False
        values, count = _read(self._redact(line))
        if not values:
            return False
        if self._bucket is None:
            self._bucket = TokenBucket(_LINES_PER_S, _LINES_PER_S * 10, now)
        self._bucket.refill(now)
        if not self._bucket.consume(1):
            return True
        by_step: dict[int, dict[str, float]] = {}
        for name, value in values.items():
            series = self._series.get(name)
            if series is None:
                if len(self._series) >= _MOST_SERIES:
                    continue
                series = self._series[name] = _Series()
            step = series.next_step(count, self._position)
            if step is not None:
                by_step.setdefault(step, {})[name] = value
        for step, found in by_step.items():
            record = {"t": round(now, 3), "k": Kind.SCRAPED.value, "i": step, "v": found}
            self._found.append((now, json.dumps(record, separators=(",", ":")).encode()))
        return True

    def pop_until(self, until: float) -> list[bytes]:
        """Remove and return the records of points that were read up to `until`."""
        taken = []
        while self._found and self._found[0][0] <= until:
            taken.append(self._found.popleft()[1])
        return taken


class _Count:
    """Place of a line in the training: a step or an epoch, or neither."""

    __slots__ = ("at", "epoch", "total")

    def __init__(self, at: int | None = None, total: int | None = None, epoch: int | None = None):
        self.at, self.total, self.epoch = at, total, epoch


class _Series:
    """Steps of one metric, which only ever rise: a counter that starts again continues behind the last one."""

    __slots__ = ("_base", "_counter", "_last")

    def __init__(self) -> None:
        self._last = -1
        self._base = 0
        self._counter: int | None = None

    def next_step(self, count: _Count, position: Callable[[], int | None]) -> int | None:
        """Return the step of the next point; None for a state that was printed before."""
        if count.at is not None:
            if self._counter is not None and count.at < self._counter:
                self._base += max(count.total or 0, self._counter)
            self._counter = count.at
            step = self._base + count.at
            if step <= self._last:
                return None
        else:
            at = count.epoch if count.epoch is not None else position()
            step = max(self._last + 1, at if at is not None else 0)
        self._last = step
        return step


def _read(line: bytes) -> tuple[dict[str, float], _Count]:
    """Return the metrics of a line and its place. Names are cleaned; a learning rate alone is no metric."""
    if (found := _DICT.search(line)) is not None:
        return _read_dict(found[0], line[: found.start()])
    values = _postfix(line) or _pairs(line)
    return values, _count(line)


def _read_dict(text: bytes, before: bytes) -> tuple[dict[str, float], _Count]:
    items = {key.decode("utf-8", "replace"): float(value) for key, value in _ITEM.findall(text)}
    if not any(_QUICK.search(name.encode()) for name in items) or ("lr" in items and "epochs" in items):
        return {}, _Count()  # settings that were printed
    step = next((int(items[key]) for key in _STEP_KEYS if key in items), None)
    count = _count(before)
    epoch = items.get("epoch")
    if step is not None:
        count = _Count(step)
    elif count.at is None and epoch is not None and b"." not in _text_of(text, b"epoch"):
        count = _Count(epoch=int(epoch))
    return {name: value for name, value in items.items() if name not in _NOT_METRICS}, count


def _text_of(text: bytes, key: bytes) -> bytes:
    return next(item[2] for item in _ITEM.finditer(text) if item[1] == key)


def _postfix(line: bytes) -> dict[str, float]:
    found = _POSTFIX.search(line)
    if found is None:
        return {}
    pairs = {name.decode(): float(value) for name, value in _POSTFIX_PAIR.findall(found["pairs"])}
    return {name: value for name, value in pairs.items() if name not in _NOT_METRICS}


def _pairs(line: bytes) -> dict[str, float]:
    values: dict[str, float] = {}
    beside: dict[str, float] = {}
    phase = _LINE_PHASE.search(line)
    for pair in _PAIR.finditer(line):
        is_prose = pair["sign"].isspace() and _NEEDS_SIGN.fullmatch(pair["name"])
        if is_prose or _NOT_NOW.search(line[: pair.start()]):
            continue
        name = re.sub(r"\s+", "_", pair["name"].decode().lower()).replace("@", "")
        value = float(pair["value"])
        if pair["of"] is not None:
            if not int(pair["of"]):
                continue
            value /= int(pair["of"])
        own = pair["phase"]
        if own is not None:
            name = f"{_PHASES[own.lower()]}_{name}"
        elif phase is not None and phase.start() < pair.start() and name.split("_")[0].encode() not in _PHASES:
            name = f"{_PHASES[phase[1].lower()]}_{name}"
        (values if _QUICK.search(pair["name"]) else beside).setdefault(name, value)
    return beside | values if values else {}


def _count(line: bytes) -> _Count:
    for pattern in _COUNTERS:
        if (found := pattern.search(line)) is not None:
            total = int(found[2]) if found[2] else None
            if total is None or int(found[1]) <= total:
                return _Count(int(found[1]), total)
    epoch = _EPOCH.search(line)
    return _Count(epoch=int(epoch[1])) if epoch else _Count()
