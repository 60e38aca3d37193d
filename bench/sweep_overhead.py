"""Cost of a trial beside its training: choosing its values, storing them and its result. Part of bench/sweep.py.

search   our searcher alone: ask and tell
sweep    the server's whole part: its sweeper notices that a trial has ended, reads its reports, checks whether the next one was
         run before, chooses its values, and writes the rows of both and of the new job, fsync included
job      what submitting the same job by itself costs; without that, it is what the sweep adds
optuna   Optuna with its journal storage in a file: ask and tell

All by TPE, in the same space, on the same losses, one trial after the other.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.ids import new_id
from shoal.core.jobs import JobSpec
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.core.sweeps import Between, Choice, Params, SweepSpec
from shoal.server.context import Context
from shoal.server.db import Database
from shoal.server.jobs import service as jobs
from shoal.server.metrics import writes as metrics
from shoal.server.metrics.intake import select_new
from shoal.server.models.jobs import Job
from shoal.server.models.sweeps import Trial
from shoal.server.policy import AgentIdentity
from shoal.server.sweeper.loop import Sweeper
from shoal.server.sweeps import service as sweeps
from shoal.testing.server import Person, add_person, add_source, make_context
from shoal.tune.search import Searcher, Tried

SPACE = {
    "lr": Between(low=1e-5, high=1.0, log=True),
    "layers": Between(low=1, high=8, whole=True),
    "dropout": Between(low=0.0, high=0.5),
    "kind": Choice(values=["a", "b", "c"]),
}
THEIRS = {
    "lr": FloatDistribution(1e-5, 1.0, log=True),
    "layers": IntDistribution(1, 8),
    "dropout": FloatDistribution(0.0, 0.5),
    "kind": CategoricalDistribution(["a", "b", "c"]),
}


def measure(sizes: Sequence[int], rounds: int) -> dict[int, dict[str, float]]:
    """Number of trials → who → seconds of each, the median of rounds in which all take turns."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ways: dict[str, Callable[[int, Path, int], float]] = {
        "search": alone,
        "sweep": in_server,
        "job": by_itself,
        "optuna": by_optuna,
    }
    found: dict[int, dict[str, float]] = {}
    for trials in sizes:
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds):
            for name, way in ways.items():
                with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
                    times[name].append(way(trials, Path(folder), number) / trials)
        found[trials] = {name: statistics.median(values) for name, values in times.items()}
    return found


def loss(params: Params) -> float:
    return (math.log10(params["lr"]) + 2) ** 2 + abs(params["layers"] - 5) + params["dropout"] + (params["kind"] == "a")


def alone(trials: int, folder: Path, seed: int) -> float:
    searcher = Searcher(_spec(trials, seed, "none"))
    began = time.perf_counter()
    for number in range(trials):
        params = searcher.ask(number) or {}
        searcher.tell(Tried(number, params, loss(params)))
    return time.perf_counter() - began


def by_optuna(trials: int, folder: Path, seed: int) -> float:
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "journal")))
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.TPESampler(seed=seed))
    began = time.perf_counter()
    for _ in range(trials):
        trial = study.ask(THEIRS)
        study.tell(trial, loss(trial.params))
    return time.perf_counter() - began


def in_server(trials: int, folder: Path, seed: int) -> float:
    ctx, person = _server(folder)
    sweeps.create(ctx, person.access(), _spec(trials, seed, add_source(ctx, person)))
    sweeper, seconds, running = Sweeper(ctx), 0.0, True
    while running:
        began = time.perf_counter()
        sweeper.pass_once()
        seconds += time.perf_counter() - began
        ended = ctx.db.write(_end_all)  # what any job costs is not counted
        for job_id in ended:
            ctx.live.job_changed(job_id)
        running = bool(ended)
    done = len(sweeps.trials(ctx, person.access(), "s", limit=10_000))
    ctx.db.close()
    if done != trials:
        raise RuntimeError(f"{done} trials of {trials}")
    return seconds


def by_itself(trials: int, folder: Path, seed: int) -> float:
    ctx, person = _server(folder)
    job = JobSpec(name="s", entry=["train.py"], source_id=add_source(ctx, person), batch="s")
    began = time.perf_counter()
    for number in range(trials):
        entry = ["train.py", "--lr", "0.001", "--layers", str(number), "--dropout", "0.1", "--kind", "a"]
        jobs.submit(ctx, person.access(), job.model_copy(update={"name": f"s-{number}", "entry": entry}))
    seconds = time.perf_counter() - began
    ctx.db.close()
    return seconds


def _server(folder: Path) -> tuple[Context, Person]:
    ctx = make_context(folder)
    ctx.db.close()
    ctx.db = Database(ctx.layout.database)  # a durable one: synchronous=FULL
    return ctx, add_person(ctx, "a@example.org")


def _end_all(session: Session) -> list[str]:
    """End all trials as if their scripts had reported and ended."""
    ended = []
    open_trials = select(Trial.params, Job).join(Job, Job.id == Trial.job_id).where(Job.ended_at.is_(None))
    for params, job in session.execute(open_trials).all():
        record = {"k": "e", "i": 1, "t": time.time(), "v": {"loss": loss(params)}}
        metrics.store(session, AgentIdentity(job.id, new_id("att"), 1, 0), select_new([record], {}))
        job.state, job.exit_code, job.ended_at = JobState.SUCCEEDED.value, 0, utcnow()
        ended.append(job.id)
    return ended


def _spec(trials: int, seed: int, source: str) -> SweepSpec:
    job = JobSpec(name="s", entry=["train.py"], source_id=source)
    return SweepSpec(name="s", job=job, space=SPACE, search="tpe", trials=trials, seed=seed)
