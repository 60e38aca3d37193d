"""MLflow's tracking API (REST 2.0), as far as training scripts use it. No network here.

One object serves all workers of a node. Runs live in memory for reads (`get_run`, `search_runs`); what is logged is passed on as
records of the job. The first run's metrics keep their names. Those of other runs get the run's name in front, because a job
has one curve per name. Artifacts are written by the client itself, to a folder of the job's output.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from shoal.core.records import Config, Step

MOST_RUNS = 10_000
_EXPERIMENT = "0"
_MLFLOW = "mlflow."
"""Prefix of the tags that MLflow itself sets."""
_NAME = "mlflow.runName"
_CONDITION = re.compile(
    r"(?:(?P<of>tags?|params?|parameters?|attributes?|attr|run)\.)?(?P<q>[`\"]?)(?P<key>[^`\"=!]+?)(?P=q)\s*(?P<sign>=|!=)\s*"
    r"['\"](?P<value>[^'\"]*)['\"]"
)

Json = dict[str, Any]
Emit = Callable[[list[Json]], None]
"""Function that receives records of rank 0, without time and line number."""


class ApiError(Exception):
    """An error in MLflow's format."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(message)
        self.status, self.body = status, {"error_code": code, "message": message}


class TrackingApi:
    """State of the runs that the workers of one node have begun. Thread-safe."""

    def __init__(self, name: str, artifacts: str, emit: Emit):
        """`name`: the job's; `artifacts`: folder for artifacts as workers see it; `emit`: receives the records."""
        self._name, self._artifacts, self._emit = name, artifacts, emit
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._experiments = {_EXPERIMENT: "Default"}
        self._config: Json = {}

    def answer(self, method: str, path: str, query: str, body: bytes, *, rank: int = 0) -> tuple[int, Json]:
        """Return status and JSON of the answer to a request. `path` begins after `/api/2.0/mlflow/`."""
        try:
            request = _parse_request(query, body)
            call = self._calls.get(path.strip("/"))
            if call is None:
                raise ApiError(404, "ENDPOINT_NOT_FOUND", f"Shoal does not provide {method} {path}")
            with self._lock:
                return 200, call(self, request, rank)
        except ApiError as error:
            return error.status, error.body
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": f"{type(error).__name__}: {error}"}

    # --- experiments ---

    def _create_experiment(self, request: Json, rank: int) -> Json:
        name = _text(request["name"])
        if name in self._experiments.values():
            raise ApiError(400, "RESOURCE_ALREADY_EXISTS", f"There is already an experiment {name!r}")
        number = str(len(self._experiments))
        self._experiments[number] = name
        return {"experiment_id": number}

    def _get_experiment(self, request: Json, rank: int) -> Json:
        return {"experiment": self._experiment(_text(request["experiment_id"]))}

    def _find_experiment(self, request: Json, rank: int) -> Json:
        wanted = request["experiment_name"]
        found = next((number for number, name in self._experiments.items() if name == wanted), None)
        if found is None:
            raise ApiError(404, "RESOURCE_DOES_NOT_EXIST", f"There is no experiment {wanted!r}")
        return {"experiment": self._experiment(found)}

    def _list_experiments(self, request: Json, rank: int) -> Json:
        return {"experiments": [self._experiment(number) for number in self._experiments]}

    def _experiment(self, number: str) -> Json:
        if number not in self._experiments:
            raise ApiError(404, "RESOURCE_DOES_NOT_EXIST", f"There is no experiment {number!r}")
        where = f"{self._artifacts}/{number}"
        name = self._experiments[number]
        return {"experiment_id": number, "name": name, "artifact_location": where, "lifecycle_stage": "active"}

    # --- runs ---

    def _create_run(self, request: Json, rank: int) -> Json:
        if len(self._runs) >= MOST_RUNS:
            raise ApiError(429, "RESOURCE_LIMIT_EXCEEDED", f"A job has at most {MOST_RUNS} runs")
        tags = _pairs(request.get("tags"))
        run = _Run(
            id=os.urandom(16).hex(),
            name=str(request.get("run_name") or tags.get(_NAME) or self._name),
            experiment=str(request.get("experiment_id") or _EXPERIMENT),
            began_ms=int(request.get("start_time") or time.time() * 1000),
            user=str(request.get("user_id") or ""),
            # Metrics of other ranks would add curves with the same names, so only those of rank 0 are passed on.
            passes_on=rank == 0,
        )
        run.tags = {_NAME: run.name} | tags
        if run.passes_on:
            taken = {other.prefix for other in self._runs.values() if other.passes_on}
            run.prefix = _free(f"{run.name}/", taken) if taken else ""
        self._runs[run.id] = run
        return {"run": self._run_json(run)}

    def _get_run(self, request: Json, rank: int) -> Json:
        return {"run": self._run_json(self._run(request))}

    def _update_run(self, request: Json, rank: int) -> Json:
        run = self._run(request)
        run.status = str(request.get("status") or run.status)
        run.ended_ms = int(request["end_time"]) if request.get("end_time") else run.ended_ms
        if request.get("run_name"):
            run.name = run.tags[_NAME] = str(request["run_name"])
        return {"run_info": self._info(run)}

    def _delete_run(self, request: Json, rank: int) -> Json:
        self._run(request).stage = "deleted"
        return {}

    def _search_runs(self, request: Json, rank: int) -> Json:
        wanted = {str(number) for number in request.get("experiment_ids") or self._experiments}
        suits = _filter(str(request.get("filter") or ""))
        found = [r for r in self._runs.values() if r.experiment in wanted and r.stage == "active" and suits(r)]
        return {"runs": [self._run_json(run) for run in reversed(found)][: int(request.get("max_results") or 1000)]}

    def _run(self, request: Json) -> _Run:
        number = request.get("run_id") or request.get("run_uuid")
        run = self._runs.get(str(number))
        if run is None:
            raise ApiError(404, "RESOURCE_DOES_NOT_EXIST", f"There is no run {number!r} in this attempt of the job")
        return run

    def _info(self, run: _Run) -> Json:
        return {
            "run_id": run.id,
            "run_uuid": run.id,
            "run_name": run.name,
            "experiment_id": run.experiment,
            "user_id": run.user,
            "status": run.status,
            "start_time": run.began_ms,
            **({"end_time": run.ended_ms} if run.ended_ms else {}),
            "artifact_uri": f"{self._artifacts}/{run.experiment}/{run.id}/artifacts",
            "lifecycle_stage": run.stage,
        }

    def _run_json(self, run: _Run) -> Json:
        last = [{"key": key, **points[-1]} for key, points in run.metrics.items()]
        params, tags = ([{"key": k, "value": v} for k, v in found.items()] for found in (run.params, run.tags))
        return {"info": self._info(run), "data": {"metrics": last, "params": params, "tags": tags}, "inputs": {}}

    # --- what is logged ---

    def _log_metric(self, request: Json, rank: int) -> Json:
        return self._log(self._run(request), metrics=[request])

    def _log_param(self, request: Json, rank: int) -> Json:
        return self._log(self._run(request), params={_text(request["key"]): str(request.get("value", ""))})

    def _set_tag(self, request: Json, rank: int) -> Json:
        return self._log(self._run(request), tags={_text(request["key"]): str(request.get("value", ""))})

    def _delete_tag(self, request: Json, rank: int) -> Json:
        self._run(request).tags.pop(_text(request["key"]), None)
        return {}

    def _log_batch(self, request: Json, rank: int) -> Json:
        return self._log(
            self._run(request),
            request.get("metrics") or [],
            params=_pairs(request.get("params")),
            tags=_pairs(request.get("tags")),
        )

    def _log(
        self,
        run: _Run,
        metrics: list[Json] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Json:
        for key, value in (params or {}).items():
            if run.params.get(key, value) != value:
                text = f"Parameter {key!r} of this run is {run.params[key]!r} already; it cannot become {value!r}"
                raise ApiError(400, "INVALID_PARAMETER_VALUE", text)
        records = _points([run.add(metric) for metric in metrics or []], run.prefix)
        run.params |= params or {}
        run.tags |= tags or {}
        told = {run.prefix + key: _plain(value) for key, value in (params or {}).items()}
        told |= {f"{run.prefix}tag:{key}": value for key, value in (tags or {}).items() if not key.startswith(_MLFLOW)}
        if told:
            self._config |= told
            records.append(_record(Config(values=dict(self._config))))
        if records and run.passes_on:
            self._emit(records)
        return {}

    def _history(self, request: Json, rank: int) -> Json:
        key = _text(request["metric_key"])
        return {"metrics": [{"key": key, **point} for point in self._run(request).metrics.get(key, [])]}

    def _nothing(self, request: Json, rank: int) -> Json:
        """Accept what has no place in a job, such as the description of a data set or of a model's signature."""
        return {}

    _calls: Mapping[str, Callable[[TrackingApi, Json, int], Json]] = {
        "experiments/create": _create_experiment,
        "experiments/get": _get_experiment,
        "experiments/get-by-name": _find_experiment,
        "experiments/search": _list_experiments,
        "experiments/list": _list_experiments,
        "experiments/set-experiment-tag": _nothing,
        "runs/create": _create_run,
        "runs/get": _get_run,
        "runs/update": _update_run,
        "runs/delete": _delete_run,
        "runs/search": _search_runs,
        "runs/log-metric": _log_metric,
        "runs/log-parameter": _log_param,
        "runs/log-batch": _log_batch,
        "runs/set-tag": _set_tag,
        "runs/delete-tag": _delete_tag,
        "runs/log-inputs": _nothing,
        "runs/outputs": _nothing,
        "runs/log-model": _nothing,
        "metrics/get-history": _history,
    }


class _Run:
    """One run of MLflow's client."""

    def __init__(self, *, id: str, name: str, experiment: str, began_ms: int, user: str, passes_on: bool):
        self.id, self.name, self.experiment, self.began_ms, self.user = id, name, experiment, began_ms, user
        self.passes_on, self.prefix = passes_on, ""
        self.status, self.stage, self.ended_ms = "RUNNING", "active", 0
        self.metrics: dict[str, list[Json]] = {}
        """The last point of each metric; earlier ones are in the job's own metrics."""
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def add(self, metric: Json) -> tuple[str, int, float, float | str]:
        """Remember a point and return it as name, step, time in seconds and value.

        A metric that is logged again and again without a step gets its count as its step: MLflow sends 0 each time.
        """
        key, value = _text(metric["key"]), _number(metric["value"])
        step, at_ms = int(metric.get("step") or 0), int(metric.get("timestamp") or time.time() * 1000)
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1 if step == 0 else -(1 << 60)
        self.metrics[key] = [{"value": value, "step": step, "timestamp": at_ms}]
        return key, count if step == 0 and count > 0 else step, at_ms / 1000, value


def _filter(text: str) -> Callable[[_Run], bool]:
    """Return the check for a filter of `search_runs`: equalities of tags, parameters and attributes, joined by "and".

    Other filters are refused: runs that do not suit would be worse than an error.
    """
    checks = []
    for part in re.split(r"\s+and\s+", text.strip(), flags=re.IGNORECASE) if text.strip() else []:
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise ApiError(400, "INVALID_PARAMETER_VALUE", f"Shoal does not know the filter {part!r}")
        checks.append((match["of"], match["key"], match["sign"] == "=", match["value"]))

    def value(run: _Run, of: str | None, key: str) -> str | None:
        if of in ("tags", "tag"):
            return run.tags.get(key)
        if of in ("params", "param", "parameter", "parameters"):
            return run.params.get(key)
        return {"status": run.status, "run_id": run.id, "run_name": run.name, "Run name": run.name}.get(key)

    return lambda run: all((value(run, of, key) == wanted) is equal for of, key, equal, wanted in checks)


def _points(points: list[tuple[str, int, float, float | str]], prefix: str) -> list[Json]:
    """Return records for these points: values of one step logged together are in one record."""
    records: list[Json] = []
    for key, step, at, value in points:
        last = records[-1] if records else None
        if last is not None and last["i"] == step and prefix + key not in last["v"]:
            last["v"][prefix + key] = value
        else:
            records.append(_record(Step(step=step, values={prefix + key: value}), at))
    return records


def _record(record: Step | Config, at: float | None = None) -> Json:
    return {"t": time.time() if at is None else at, "k": str(record.kind), "rank": 0, **record.encode()}


def _parse_request(query: str, body: bytes) -> Json:
    found: Any = json.loads(body) if body.strip() else {}
    if not isinstance(found, dict):
        raise ApiError(400, "BAD_REQUEST", "The body must be a JSON object")
    plain = {key: values[-1] for key, values in parse_qs(query).items()}
    return plain | found


def _pairs(found: Any) -> dict[str, str]:
    return {_text(pair["key"]): str(pair.get("value", "")) for pair in found or []}


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a name")
    return value


def _number(value: Any) -> float | str:
    """Return a metric's value; NaN and infinity as the texts that records have for them."""
    found = float(value)
    if found != found:
        return "nan"
    if found in (float("inf"), float("-inf")):
        return "inf" if found > 0 else "-inf"
    return found


def _plain(text: str) -> Any:
    """Return a parameter as the number or truth value that it was before MLflow's client made a text of it."""
    known = {"True": True, "False": False, "None": None}
    if text in known:
        return known[text]
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if value == value and abs(value) != float("inf") else text
    return text


def _free(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name.removesuffix('/')}-{number}/"
    return found
