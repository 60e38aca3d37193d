"""Kill -9 of the server in the middle of a sweep: no trial is lost, none is run twice. `SHOAL_ROUNDS` sets how often (./scripts/soak: 20)."""

import json
import os
import random

import pytest

from shoal.core.jobs import JobSpec
from shoal.core.sweeps import Between, Choice, SweepSpec
from shoal.store.pack import pack_tree
from shoal.testing.engines import eventually
from shoal.testing.live import live_server

ROUNDS = int(os.environ.get("SHOAL_ROUNDS", "1"))
TRIALS, KILLS = 16, 3
# Writes what the SDK writes, without the second that torch takes.
TRIAL = """
import json, os, time
lr, number = json.loads(os.environ["SHOAL_PARAMS"])["lr"], int(os.environ["SHOAL_TRIAL"])
print(f"began {number} {os.environ['SHOAL_ATTEMPT']}", flush=True)
with open(os.environ["SHOAL_SPOOL"] + "/rank-0.jsonl", "a") as spool:
    for step in range(3):
        line = {"t": time.time(), "n": step, "k": "e", "i": step, "v": {"loss": lr + 3 - step}}
        print(json.dumps(line), file=spool, flush=True)
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(tmp_path_factory.mktemp("sweep-kills"), slots=4) as server:
        yield server


@pytest.fixture(scope="module")
def source(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    (folder / "trial.py").write_text(TRIAL)
    with server.client() as client:
        return client.sources.send(pack_tree(folder))[0].id


def begin(server, source, name, search):
    # What another round has run would be reused.
    job = JobSpec(name=name, entry=["trial.py"], source_id=source, env={"ROUND": name})
    how = {"space": {"lr": Choice(values=[n / 2 for n in range(TRIALS)])}}
    if search != "grid":
        how = {"space": {"lr": Between(low=0.0, high=8.0)}, "trials": TRIALS}
    with server.client() as client:
        client.sweeps.create(SweepSpec(name=name, job=job, search=search, metric="loss", parallel=4, **how))


def over(server, name):
    with server.client() as client:
        view = client.sweeps.get(name)
    return TRIALS if view.ended_at else sum(view.counts.values()) - view.counts.get("running", 0)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_no_trial_is_lost_and_none_is_run_twice_however_the_server_dies(server, source, round_):
    search = ("grid", "asha")[round_ % 2]
    if search == "asha":
        pytest.importorskip("optuna")
    name = f"killed-{round_}"
    begin(server, source, name, search)
    for enough in sorted(random.sample(range(TRIALS - 4), KILLS)):
        eventually(lambda enough=enough: over(server, name) >= enough, 60)
        server.kill()
        server.start()
    with server.client() as client:
        view = client.sweeps.wait(name, timeout_s=90)
        rows = client.sweeps.trials(name)
        jobs = [client.jobs.get(row.job_id) for row in rows]
        every = client.jobs.list(search=f"{name}-", limit=1000)
        lines = {job.name: [line.text for line in client.jobs.lines(job.id)] for job in jobs}
    assert view.status == "finished", view.reason
    assert [row.number for row in rows] == list(range(TRIALS))
    assert sorted(job.name for job in every) == sorted(f"{name}-{n}" for n in range(TRIALS))
    assert {str(row.state) for row in rows} <= ({"done"} if search == "grid" else {"done", "pruned"})
    for row, job in zip(rows, jobs, strict=True):
        assert json.loads(job.spec.env["SHOAL_PARAMS"]) == row.params
        # A server that dies between writing an attempt down and letting its agent go has begun nothing.
        reasons = {attempt.reason for attempt in job.attempt_list[:-1]}
        assert all("never started" in reason or "agent died" in reason for reason in reasons), job.attempt_list
        began = [text for text in lines[job.name] if text.startswith("began")]
        # One that is pruned while it starts may never come to print it.
        assert began == [f"began {row.number} {job.attempts}"] or (not began and row.state == "pruned")
        if row.state == "done":
            assert (row.result, row.reports) == (pytest.approx(row.params["lr"] + 1), 3)
    assert view.best.result == min(row.result for row in rows if row.result is not None)
