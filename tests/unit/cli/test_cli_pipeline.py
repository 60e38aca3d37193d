"""`shoal training pipeline`: the steps of the project file as jobs, in order, with their links; mistakes in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, reply
from test_cli_training import accept as accept_source

FILE = """
name: gpt
env: {A: "1"}
pipeline:
  score: {run: step.py --of /input/train, after: [train]}
  train: {run: step.py, after: ["prepare:ended", other], env: {B: "2"}, nodes: 2}
  prepare: {run: prepare.py --all}
profiles:
  debug: {env: {A: debug}, nodes: 1}
"""
W = "/workspaces/default"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("prepare.py", "step.py"):
        (tmp_path / name).write_text("print(1)\n")
    (tmp_path / "shoal.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submitted(stub: Stub) -> list[tuple[str, dict[str, Any]]]:
    sent = [one for one in stub.asked if one.method == "POST" and one.path.partition("?")[0].endswith("/jobs")]
    return [(one.path.partition("?")[2], one.json) for one in sent]


@pytest.fixture
def server(stub: Stub) -> Stub:
    def accept(handler: Any) -> None:
        spec = stub.asked[-1].json
        reply(201, views.job("queued", name=spec["name"]))(handler)

    accept_source(stub)
    stub.routes |= {f"GET {W}/jobs": reply(200, [views.job(name="gpt-prepare")]), f"POST {W}/jobs": accept}
    return stub


def test_each_step_starts_after_the_jobs_of_those_it_names(cli: Cli, server: Stub, folder: Path) -> None:
    ran = cli("training", "pipeline", "--json")
    assert ran.code == 0, ran.err
    (query, prepare), (_, train), (_, score) = submitted(server)
    assert query == "reuse=true"
    assert (prepare["name"], prepare["entry"], prepare["env"]) == ("gpt-prepare-2", ["prepare.py", "--all"], {"A": "1"})
    assert (train["name"], train["env"], train["max_nodes"]) == ("gpt-train", {"A": "1", "B": "2"}, 2)
    after = [(one["at"], one["job"], one["when"]) for one in train["after"]]
    assert after == [("prepare", "gpt-prepare-2", "ended"), ("", "other", "succeeded")]
    assert (score["entry"], score["after"][0]["job"]) == (["step.py", "--of", "/input/train"], "gpt-train")
    assert [row["step"] for row in json.loads(ran.out)] == ["prepare", "train", "score"]


def test_a_profile_is_below_the_steps_and_again_reuses_nothing(cli: Cli, server: Stub, folder: Path) -> None:
    assert cli("training", "pipeline", "--profile", "debug", "--again").code == 0
    (query, prepare), (_, train), _ = submitted(server)
    assert (query, prepare["env"], train["env"]) == ("", {"A": "debug"}, {"A": "debug", "B": "2"})
    assert train["max_nodes"] == 2, "what a step says of itself comes first"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pipeline: {a: {run: step.py, after: [b]}, b: {run: step.py, after: [a]}}", "wait for each other"),
        ("pipeline: {a: {nodes: 1}}", "step 'a' has no script"),
        ("run: step.py", "has no pipeline"),
        ("pipeline: {a: {run: step.py, after: ['b:failed']}}", "JOB:ended"),
        ("pipeline: {a: {run: step.py, pipeline: {}}}", "pipeline"),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(
    cli: Cli, server: Stub, folder: Path, text: str, message: str
) -> None:
    (folder / "shoal.yaml").write_text(text)
    ran = cli("training", "pipeline")
    assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err
    assert not server.asked
