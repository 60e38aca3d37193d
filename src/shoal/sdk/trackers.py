"""Copies of the metrics in other trackers: a thread reads the spool file and calls the trackers, outside the training loop.

Calls that a script itself makes to W&B, TensorBoard or MLflow are not touched; in jobs, those to MLflow go to the agent.
"""

# Why this is safe: the training thread never calls a tracker. It writes to the spool, and one daemon thread of rank 0 reads
# the file and makes all calls, in order; `_file`, `_rest` and `_trackers` belong to that thread. A half-written line stays
# in `_rest` until the rest of it arrives. `close` runs in the training thread: it sets `_closing` after the last record was
# written to the file, so the thread's last pass reads everything. It only reads `_calling` and `_moved_at`, which are single
# assignments. A tracker that hangs delays the end of the run by CLOSE_S or SLOW_S, not longer; one that raises is removed.

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from shoal.core.errors import MissingExtra, UsageError
from shoal.core.records import SERIES, Kind
from shoal.sdk.context import Context
from shoal.sdk.options import Options

logger = logging.getLogger(__name__)

_EVERY_S = 1.0
_BATCH = 200
"""Records read without a pause; in the pause after them the training gets the interpreter."""
CLOSE_S = 2.0
SLOW_S = 30.0
"""Seconds allowed for starting and closing a tracker. W&B does both over the network; short runs would be lost otherwise."""


@runtime_checkable
class Tracker(Protocol):
    """Interface of the objects in `trackers=` of `shoal.init`. All calls come from one thread, in order.

    Optional methods: `load()` for slow imports, `start(name, config, dir)` before the first record,
    `media(step, name, type, path, mime)` and `close()`.

    Example::

        class Printer:
            def log(self, step, values):
                print(step, values)

        run = shoal.init(trackers=[Printer()])
    """

    def log(self, step: int, values: Mapping[str, Any]) -> None: ...


class Mirror:
    """Thread that follows the spool file of rank 0 and passes its records to every tracker."""

    def __init__(self, trackers: Sequence[Tracker], spool: Path, context: Context, options: Options):
        self._trackers, self._path = list(trackers), spool
        self._context, self._options = context, options
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: BinaryIO | None = None
        """Spool file, open at the position up to which it was read. A path and an offset could not tell a file that was removed
        and created again from the one before."""
        self._rest = b""
        self._moved_at = 0.0
        self._calling = ""

    def start(self) -> None:
        """Start the thread. It passes on records that are written from now on."""
        with suppress(OSError):
            self._file = self._path.open("rb")
            self._file.seek(0, os.SEEK_END)
        self._thread = threading.Thread(target=self._follow, name="shoal-trackers", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Pass on the remaining records and close the trackers.

        The thread is abandoned if one record takes longer than `timeout_s`, or starting or closing longer than SLOW_S.
        """
        self._closing.set()
        if self._thread is None:
            return
        self._moved_at = time.monotonic()
        while self._thread.is_alive():
            if time.monotonic() - self._moved_at > (timeout_s if self._calling in ("log", "media") else SLOW_S):
                break
            self._thread.join(0.02)
        if self._thread.is_alive():
            logger.warning("shoal: the trackers did not accept the last metrics within %g s", timeout_s)

    def _follow(self) -> None:
        started = False
        # Imports take seconds: do them now, not when the run ends.
        self._each("load")
        while True:
            last = self._closing.is_set()
            for record in self._new_records():
                if not started:
                    started = True
                    self._each("start", self._context.name, dict(self._options.config or {}), self._context.dir)
                self._pass_on(record)
            if last:
                break
            self._closing.wait(_EVERY_S)
        self._end_file()
        if started:
            self._each("close")

    def _new_records(self) -> Any:
        """Yield the records of whole lines written since the last call, with a short pause after each batch."""
        for at, line in enumerate(self._lines(), 1):
            try:
                yield json.loads(line)
            except ValueError:
                continue
            if at % _BATCH == 0 and not self._closing.is_set():
                self._closing.wait(0.01)

    def _lines(self) -> list[bytes]:
        """Return the whole lines written since the last call. After the file was created again, the old one is read to its end."""
        lines: list[bytes] = []
        with suppress(OSError):
            lines += self._unread()
            if self._file is None or not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                new = self._path.open("rb")
                lines += self._unread()
                self._end_file()
                self._file = new
                lines += self._unread()
        return lines

    def _unread(self) -> list[bytes]:
        if self._file is None:
            return []
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return lines

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _pass_on(self, record: dict[str, Any]) -> None:
        kind = record.get("k")
        if kind in SERIES:
            values = {k: _number(v) for k, v in record["v"].items()}
            self._each("log", record["i"], values)
        elif kind == Kind.MEDIA:
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
                logger.warning("shoal: tracker %s failed and is disabled: %s", type(tracker).__name__, error)
                self._trackers.remove(tracker)


class TensorBoard:
    """Event files in $TENSORBOARD_LOGDIR, or in `tensorboard/` of the run directory."""

    def __init__(self, context: Context):
        _need("tensorboard", "TensorBoard")
        # Not in the output directory: files in there are taken for checkpoints.
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
    """W&B tracker: uses the script's own W&B run if there is one, else a new run that is resumed with the job."""

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
        # The step is a metric, not W&B's own counter: that counter cannot decrease after a resume.
        self._run.log({**values, "shoal/step": step})

    def media(self, step: int, name: str, type: str, path: Path, mime: str) -> None:
        if mime in ("image/png", "image/jpeg"):
            picture = importlib.import_module("wandb").Image(str(path))
            self._run.log({name: picture, "shoal/step": step})

    def close(self) -> None:
        if self._ours:
            self._run.finish()


class MLflow:
    """MLflow tracker: a run on the server at MLFLOW_TRACKING_URI, which the attempts of a job share."""

    def __init__(self, context: Context):
        _need("mlflow", "MLflow", package="mlflow-skinny")
        if _INGEST.fullmatch(os.environ.get("MLFLOW_TRACKING_URI", "")):
            raise UsageError(
                'trackers=["mlflow"] sends metrics to your MLflow server, and none is named',
                hint="--env MLFLOW_TRACKING_URI=https://…; what the script itself logs with MLflow's client is in the job already",
            )
        self._context = context
        self._client: Any = None
        self._run = ""

    def load(self) -> None:
        importlib.import_module("mlflow")

    def start(self, name: str, config: dict[str, Any], dir: Path) -> None:
        self._client = importlib.import_module("mlflow").MlflowClient()
        job = self._context.job_id
        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID") or self._experiment(
            os.environ.get("MLFLOW_EXPERIMENT_NAME")
        )
        found = self._client.search_runs([experiment], f"tags.`shoal.job` = '{job}'", max_results=1) if job else []
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"mlflow.runName": name} | ({"shoal.job": job} if job else {})
        self._run = self._client.create_run(experiment, tags=tags).info.run_id
        for key, value in config.items():
            self._client.log_param(self._run, key, value)

    def _experiment(self, name: str | None) -> str:
        if name is None:
            return "0"
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        metric, now = importlib.import_module("mlflow.entities").Metric, int(time.time() * 1000)
        numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
        self._client.log_batch(self._run, [metric(name, float(value), now, step) for name, value in numbers.items()])
        for name in values.keys() - numbers.keys():
            self._client.set_tag(self._run, name, values[name])

    def media(self, step: int, name: str, type: str, path: Path, mime: str) -> None:
        self._client.log_artifact(self._run, str(path), f"step-{step}")

    def close(self) -> None:
        self._client.set_terminated(self._run)


_INGEST = re.compile(r"http://127\.0\.0\.1:\d+/[\w-]{22}/\d+")
"""The tracking URI that a job gives its workers: MLflow's API in the job's own agent."""
_BUILT_IN: dict[str, Callable[[Context], Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def make(wanted: Sequence[Any], context: Context) -> list[Tracker]:
    """Return the requested trackers. Raise UsageError for unknown ones and MissingExtra for those not installed."""
    made: list[Tracker] = []
    for tracker in wanted:
        if isinstance(tracker, str):
            if tracker not in _BUILT_IN:
                names = ", ".join(repr(n) for n in _BUILT_IN)
                raise UsageError(
                    f"there is no tracker {tracker!r}; use {names}, or an object with a method log(step, values)"
                )
            made.append(_BUILT_IN[tracker](context))
        elif isinstance(tracker, Tracker):
            made.append(tracker)
        else:
            raise UsageError(f"{tracker!r} is not a tracker: it has no method log(step, values)")
    return made


def _need(module: str, title: str, *, package: str = "") -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingExtra(f"{title} is not installed here", hint=f"pip install {package or module}")


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value
