"""Mirrors of the metrics in other trackers: a thread reads them back from the spool, away from the training loop.

What a script itself sends to W&B, TensorBoard or MLflow is its own business and left alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from shoal.core.errors import MissingExtra, UsageError
from shoal.sdk.context import Context
from shoal.sdk.options import Options

logger = logging.getLogger(__name__)

_EVERY_S = 1.0
_BATCH = 200
"""Records per breath: the interpreter is the training's between them."""
CLOSE_S = 2.0
SLOW_S = 30.0
"""For starting and closing a tracker, which W&B does over the network: else short runs would not be in it at all."""


@runtime_checkable
class Tracker(Protocol):
    """What an object given in `trackers=` needs. All calls come from one thread, in order.

    It may also have `load()` (slow imports), `start(name, config, dir)` before the first record,
    `media(step, name, type, path, mime)` and `close()`.
    """

    def log(self, step: int, values: Mapping[str, Any]) -> None: ...


class Mirror:
    """Follows the spool file of rank 0 and tells every tracker."""

    def __init__(self, trackers: Sequence[Tracker], spool: Path, context: Context, options: Options):
        self._trackers, self._path = list(trackers), spool
        self._context, self._options = context, options
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._offset = 0
        self._rest = b""
        self._moved_at = 0.0
        self._calling = ""

    def start(self) -> None:
        """Follow what is written from now on."""
        self._offset = self._path.stat().st_size if self._path.exists() else 0
        self._thread = threading.Thread(target=self._follow, name="shoal-trackers", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Tell the rest. A tracker that takes longer than this over one record is left behind."""
        self._closing.set()
        if self._thread is None:
            return
        self._moved_at = time.monotonic()
        while self._thread.is_alive():
            if time.monotonic() - self._moved_at > (timeout_s if self._calling in ("log", "media") else SLOW_S):
                break
            self._thread.join(0.02)
        if self._thread.is_alive():
            logger.warning("shoal: the trackers did not take the last metrics within %g s", timeout_s)

    def _follow(self) -> None:
        started = False
        # Imports take seconds: now, not when the run ends.
        self._each("load")
        while True:
            last = self._closing.is_set()
            for record in self._news():
                if not started:
                    started = True
                    self._each("start", self._context.name, dict(self._options.config or {}), self._context.dir)
                self._tell(record)
            if last:
                break
            self._closing.wait(_EVERY_S)
        if started:
            self._each("close")

    def _news(self) -> Any:
        """Whole lines written since; a breath between batches."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for at, line in enumerate(lines, 1):
            try:
                yield json.loads(line)
            except ValueError:
                continue
            if at % _BATCH == 0 and not self._closing.is_set():
                self._closing.wait(0.01)

    def _tell(self, record: dict[str, Any]) -> None:
        kind = record.get("k")
        if kind in ("s", "e"):
            values = {k: _number(v) for k, v in record["v"].items()}
            self._each("log", record["i"], values)
        elif kind == "m":
            path = self._path.parent / record["file"]
            self._each("media", record["i"], record["name"], record["type"], path, record["mime"])

    def _each(self, method: str, *args: Any) -> None:
        for tracker in list(self._trackers):
            call = getattr(tracker, method, None)
            if call is None:
                continue
            self._calling = method
            try:
                call(*args)
                self._moved_at = time.monotonic()
            except Exception as error:
                logger.warning("shoal: %s failed and gets no more metrics: %s", type(tracker).__name__, error)
                self._trackers.remove(tracker)


class TensorBoard:
    """Event files in $TENSORBOARD_LOGDIR, or in `tensorboard/` of the run directory."""

    def __init__(self, context: Context):
        _need("tensorboard", "TensorBoard")
        # Not in the output directory: whatever is in there is taken for a checkpoint.
        self._root = context.spool_dir if context.on_platform else context.dir
        self._writer: Any = None

    def load(self) -> None:
        importlib.import_module("torch.utils.tensorboard")

    def start(self, name: str, config: dict[str, Any], dir: Path) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        log_dir = os.environ.get("TENSORBOARD_LOGDIR") or str(self._root / "tensorboard")
        self._writer = module.SummaryWriter(log_dir=log_dir)
        if config:
            self._writer.add_text("config", f"```\n{json.dumps(config, indent=2, default=str)}\n```")

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, value, step)

    def media(self, step: int, name: str, type: str, path: Path, mime: str) -> None:
        if mime not in ("image/png", "image/jpeg"):
            return
        summary = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        picture = summary.Image(encoded_image_string=path.read_bytes())
        value = summary.Value(tag=name, image=picture)
        self._writer._get_file_writer().add_summary(summary(value=[value]), step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A W&B run of the script's own if it has one, else a new one that resumes with the job."""

    def __init__(self, context: Context):
        _need("wandb", "Weights & Biases")
        self._context = context
        self._run: Any = None
        self._ours = False

    def load(self) -> None:
        importlib.import_module("wandb")

    def start(self, name: str, config: dict[str, Any], dir: Path) -> None:
        wandb = importlib.import_module("wandb")
        self._run = wandb.run
        if self._run is None:
            self._ours = True
            job = self._context.job_id
            again = {"id": job, "resume": "allow"} if job else {}
            self._run = wandb.init(name=name, config=config, dir=str(dir), **again)
        self._run.define_metric("*", step_metric="shoal/step")

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        # A metric for the step, not W&B's own counter: that one may not go back after a resume.
        self._run.log({**values, "shoal/step": step})

    def media(self, step: int, name: str, type: str, path: Path, mime: str) -> None:
        if mime in ("image/png", "image/jpeg"):
            picture = importlib.import_module("wandb").Image(str(path))
            self._run.log({name: picture, "shoal/step": step})

    def close(self) -> None:
        if self._ours:
            self._run.finish()


_BUILT_IN: dict[str, Callable[[Context], Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB}


def make(wanted: Sequence[Any], context: Context) -> list[Tracker]:
    """The trackers asked for; refuses at once what is not installed."""
    made: list[Tracker] = []
    for tracker in wanted:
        if isinstance(tracker, str):
            if tracker not in _BUILT_IN:
                names = ", ".join(repr(n) for n in _BUILT_IN)
                raise UsageError(f"there is no tracker {tracker!r}; built in are {names}, or pass an object")
            made.append(_BUILT_IN[tracker](context))
        elif isinstance(tracker, Tracker):
            made.append(tracker)
        else:
            raise UsageError(f"{tracker!r} cannot be a tracker: it has no method log(step, values)")
    return made


def _need(package: str, title: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(f"{title} is not installed here", hint=f"pip install {package}")


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value
