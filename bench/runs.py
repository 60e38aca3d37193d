"""Time of queries over many runs: 10,000 runs with 50 metrics each, as the table of runs asks them.

python bench/runs.py [RUNS] [METRICS]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from sqlalchemy import insert

from shoal.core.ids import new_id
from shoal.core.jobs import JobSpec
from shoal.core.schema import utcnow
from shoal.server.models.jobs import Job
from shoal.server.models.runs import RunMetric
from shoal.server.models.sources import Source
from shoal.server.runs import query as runs
from shoal.testing.server import add_person, make_context

QUERIES = {
    "first page": {"columns": ["lr", "loss.min", "acc.max"]},
    "sort by a metric": {"sort": "loss.min", "columns": ["lr", "loss.min", "acc.max"]},
    "filter": {"q": "lr>1e-4 tag:ablation status:failed loss.min<2 user:ada"},
    "filter and sort by another metric": {
        "q": "loss.min<1.5 depth:4",
        "sort": "-acc.max",
        "columns": ["lr", "acc.max"],
    },
    "group by a parameter": {"group": ["depth"], "columns": ["loss.min", "acc.max"]},
    "group by all but the seed": {"group": ["-seed"], "columns": ["loss.min", "acc.max"], "sort": "loss.min"},
}


def main(total: int = 10_000, metrics: int = 50) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ctx = make_context(Path(folder))
        person = add_person(ctx, "ada@example.org")
        fill(ctx, person, total, metrics)
        for name, options in QUERIES.items():
            runs.query(ctx, person.access(), **options)
            walls, cpus = [], []
            for _ in range(7):
                wall, cpu = time.perf_counter(), time.thread_time()
                runs.query(ctx, person.access(), **options)
                walls.append(time.perf_counter() - wall)
                cpus.append(time.thread_time() - cpu)
            print(f"{name:36} {1000 * sorted(walls)[3]:7.1f} ms, CPU {1000 * sorted(cpus)[3]:6.1f} ms")
        ctx.db.close()


def fill(ctx, person, total: int, metrics: int) -> None:
    rng = random.Random(1)
    now, source = utcnow(), new_id("src")
    spec = JobSpec(name="x", entry=["train.py"], source_id=source).model_dump(mode="json")
    ids = [new_id("job") for _ in range(total)]
    names = ["loss", "acc", *(f"metric/{n}" for n in range(metrics - 2))]
    jobs = [
        {
            "id": job_id, "workspace_id": person.workspace_id, "name": f"run-{n}", "spec": spec | {"name": f"run-{n}"},
            "source_id": source, "inputs": [], "created_by": person.email, "priority": 0, "created_at": now,
            "state": "failed" if n % 7 == 0 else "succeeded", "started_at": now, "ended_at": now,
            "tags": ["ablation"] if n % 3 == 0 else [], "kind": "job",
            "params": {"depth": n % 12, "lr": 10 ** rng.uniform(-5, -2) if n % 50 == 0 else 1e-3, "opt": "adam",
                       "seed": n % 10, "width": 64 * (n % 5)},
        }
        for n, job_id in enumerate(ids)
    ]  # fmt: skip

    def work(session) -> None:
        session.add(Source(id=source, workspace_id=person.workspace_id, manifest_id="m", size=0, files=0, origin={},
                           created_at=now))  # fmt: skip
        session.flush()
        session.execute(insert(Job), jobs)
        for job_id in ids:
            rows = [{"job_id": job_id, "name": name, "last": rng.random() * 3, "min": rng.random() * 2, "max": 3.0,
                     "last_step": 1000, "count": 1000} for name in names]  # fmt: skip
            session.execute(insert(RunMetric), rows)

    ctx.db.write(work)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
