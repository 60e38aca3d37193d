"""MLflow's REST API in a job, spoken to over real connections; with MLflow's own client where that is installed."""

from __future__ import annotations

import http.client
import json
import math
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from shoal.agent.mlflow.api import TrackingApi
from shoal.agent.mlflow.listener import LARGEST, TrackingListener
from shoal.testing.extras import needs

Json = dict[str, Any]


class Job:
    """A job's tracking API, and what it passed on."""

    def __init__(self) -> None:
        self.records: list[Json] = []
        self.listener = TrackingListener.on_loopback(
            TrackingApi("digits", "/output-checkpoint/mlruns", self.records.extend)
        )

    def ask(self, path: str, body: Any = None, *, method: str = "POST", rank: int = 0, url: str | None = None) -> Any:
        parts = urlsplit(url or self.listener.url(rank))
        connection = http.client.HTTPConnection(parts.netloc, timeout=10)
        try:
            text = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
            connection.request(method, f"{parts.path}/api/2.0/mlflow/{path}", text)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def told(self, path: str, body: Any = None, **options: Any) -> Json:
        status, answer = self.ask(path, body, **options)
        assert status == 200, answer
        return answer

    def run(self, name: str = "", *, rank: int = 0) -> str:
        found: str = self.told("runs/create", {"experiment_id": "0", "run_name": name}, rank=rank)["run"]["info"][
            "run_id"
        ]
        return found

    @property
    def points(self) -> list[tuple[int, Json]]:
        return [(r["i"], r["v"]) for r in self.records if r["k"] == "s"]

    @property
    def config(self) -> Json:
        found: Json = [r["v"] for r in self.records if r["k"] == "h"][-1]
        return found


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    job.listener.close()
    for thread in [t for t in threading.enumerate() if t.name == "mlflow"]:
        thread.join(5)


def test_metrics_and_parameters_of_a_run_become_records_of_the_job(job: Job) -> None:
    run = job.run()
    job.told("runs/log-metric", {"run_id": run, "key": "loss", "value": 0.5, "step": 3, "timestamp": 1_700_000_000_000})
    job.told("runs/log-parameter", {"run_id": run, "key": "lr", "value": "0.001"})
    job.told("runs/log-batch", {
        "run_id": run,
        "metrics": [
            {"key": "loss", "value": 0.4, "step": 4, "timestamp": 1_700_000_001_000},
            {"key": "acc", "value": 0.9, "step": 4, "timestamp": 1_700_000_001_000},
            {"key": "loss", "value": "NaN", "step": 5, "timestamp": 1_700_000_002_000},
        ],
        "params": [{"key": "amp", "value": "True"}],
        "tags": [{"key": "team", "value": "vision"}, {"key": "mlflow.source.name", "value": "train.py"}],
    })  # fmt: skip
    assert job.points == [(3, {"loss": 0.5}), (4, {"loss": 0.4, "acc": 0.9}), (5, {"loss": "nan"})]
    assert job.records[0] | {"v": 0} == {"t": 1_700_000_000.0, "k": "s", "rank": 0, "i": 3, "v": 0}
    assert job.config == {"lr": 0.001, "amp": True, "tag:team": "vision"}
    shown = job.told("runs/get?run_id=" + run, method="GET")["run"]
    assert {m["key"]: m["value"] for m in shown["data"]["metrics"]} == {"loss": "nan", "acc": 0.9}
    assert shown["info"]["artifact_uri"] == f"/output-checkpoint/mlruns/0/{run}/artifacts"
    job.told("runs/update", {"run_id": run, "status": "FINISHED", "end_time": 1_700_000_003_000})
    assert job.told("runs/get", {"run_id": run})["run"]["info"]["status"] == "FINISHED"


def test_a_metric_without_steps_gets_its_count_as_step(job: Job) -> None:
    run = job.run()
    for value in (3.0, 2.0, 1.0):
        job.told("runs/log-metric", {"run_id": run, "key": "loss", "value": value, "timestamp": 1})
    for step in (0, 5, 0):
        job.told("runs/log-metric", {"run_id": run, "key": "acc", "value": 1.0, "step": step, "timestamp": 1})
    assert job.points == [(0, {"loss": 3.0}), (1, {"loss": 2.0}), (2, {"loss": 1.0}), (0, {"acc": 1.0}), (5, {"acc": 1.0}), (0, {"acc": 1.0})]  # fmt: skip


def test_further_runs_have_their_names_in_front_and_other_ranks_pass_nothing_on(job: Job) -> None:
    first, second, third, other = job.run("a"), job.run("fold"), job.run("fold"), job.run("a", rank=1)
    for run in (first, second, third, other):
        job.told("runs/log-metric", {"run_id": run, "key": "loss", "value": 1, "step": 1, "timestamp": 1})
    assert job.points == [(1, {"loss": 1.0}), (1, {"fold/loss": 1.0}), (1, {"fold-2/loss": 1.0})]
    found = job.told("runs/search", {"experiment_ids": ["0"]})["runs"]
    assert [run["info"]["run_id"] for run in found] == [other, third, second, first]


def test_runs_are_found_by_equalities_and_other_filters_are_refused(job: Job) -> None:
    first, second = job.run("a"), job.run("b")
    job.told("runs/set-tag", {"run_id": first, "key": "kind.of", "value": "x"})
    job.told("runs/log-parameter", {"run_id": second, "key": "lr", "value": "0.1"})

    def found(text: str) -> list[str]:
        return [run["info"]["run_id"] for run in job.told("runs/search", {"filter": text}).get("runs", [])]

    assert found("tags.`kind.of` = 'x'") == [first] and found("params.lr = '0.1' and attributes.run_name = 'b'") == [
        second
    ]
    assert found("tags.`kind.of` != 'x'") == [second] and found("run_name = 'c'") == []
    for text in ("metrics.loss < 1", "tags.a LIKE 'x%'", "a = 'x' or b = 'y'"):
        status, answer = job.ask("runs/search", {"filter": text})
        assert status == 400 and "does not know the filter" in answer["message"]


def test_experiments_are_known_by_name(job: Job) -> None:
    status, answer = job.ask("experiments/get-by-name?experiment_name=mine", method="GET")
    assert (status, answer["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")
    number = job.told("experiments/create", {"name": "mine"})["experiment_id"]
    found = job.told("experiments/get-by-name?experiment_name=mine", method="GET")["experiment"]
    assert (found["experiment_id"], found["name"]) == (number, "mine")
    assert job.ask("experiments/create", {"name": "mine"})[1]["error_code"] == "RESOURCE_ALREADY_EXISTS"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("runs/log-metric", {"run_id": "none", "key": "a", "value": 1}, 404),
        ("runs/log-metric", {"key": "a"}, 404),
        ("model-versions/create", {}, 404),
        ("runs/create", b"{", 400),
        ("runs/create", b"[1]", 400),
        ("runs/create", {"tags": 5}, 400),
        ("experiments/create", {"name": ["x"]}, 400),
        ("experiments/create", {}, 400),
    ],
)
def test_senseless_requests_are_answered_in_mlflows_format(job: Job, path: str, body: Any, status: int) -> None:
    found, answer = job.ask(path, body)
    assert found == status and answer["error_code"] and answer["message"]
    assert job.records == []


def test_a_parameter_cannot_change_and_nothing_of_that_request_counts(job: Job) -> None:
    run = job.run()
    job.told("runs/log-parameter", {"run_id": run, "key": "lr", "value": "1"})
    status, answer = job.ask("runs/log-batch", {"run_id": run, "params": [{"key": "lr", "value": "2"}], "metrics": [{"key": "a", "value": 1}]})  # fmt: skip
    assert status == 400 and "'lr' of this run is '1' already" in answer["message"]
    assert job.points == [] and job.config == {"lr": 1}


def test_only_who_knows_the_key_is_answered_and_only_up_to_a_size(job: Job) -> None:
    run = job.run()
    stranger = job.listener.url(0).replace(job.listener.key, "guess")
    assert job.ask("runs/get", {"run_id": run}, url=stranger)[0] == 403
    parts = urlsplit(job.listener.url(0))
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    connection.putrequest("POST", f"{parts.path}/api/2.0/mlflow/runs/create")
    connection.putheader("Content-Length", str(LARGEST + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_values_that_are_no_numbers_keep_their_meaning(job: Job) -> None:
    run = job.run()
    values = {"a": math.inf, "b": -math.inf, "c": math.nan, "d": "Infinity"}
    batch = [{"key": key, "value": value, "step": 1} for key, value in values.items()]
    job.told("runs/log-batch", {"run_id": run, "metrics": batch})
    assert job.points == [(1, {"a": "inf", "b": "-inf", "c": "nan", "d": "inf"})]


@needs("mlflow")
def test_a_script_with_mlflows_own_client_runs_unmodified(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    job.listener._api._artifacts = str(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", job.listener.url(0))
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):  # the client sets them
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    import mlflow

    mlflow.set_tracking_uri(None)
    mlflow.set_experiment("digits")
    with mlflow.start_run(run_name="one"):
        mlflow.log_params({"lr": 0.1, "layers": 2})
        for step in range(3):
            mlflow.log_metric("loss", 1.0 / (step + 1), step=step)
        mlflow.log_metrics({"acc": 0.5, "f1": 0.4}, step=2)
        mlflow.set_tag("kind", "test")
        mlflow.log_text("hello", "notes/hello.txt")
        with mlflow.start_run(run_name="inner", nested=True):
            mlflow.log_metric("loss", 7.0)
    assert mlflow.search_runs(output_format="list")[0].data.metrics["loss"] == 7.0
    assert mlflow.MlflowClient().get_run(mlflow.last_active_run().info.run_id).data.params["lr"] == "0.1"
    assert [values for _, values in job.points][:3] == [{"loss": 1.0}, {"loss": 0.5}, {"loss": 1.0 / 3}]
    assert {"inner/loss": 7.0} in [values for _, values in job.points]
    assert job.config == {"lr": 0.1, "layers": 2, "tag:kind": "test"}
    assert next(tmp_path.rglob("hello.txt")).read_text() == "hello"
