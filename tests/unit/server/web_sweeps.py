"""Sweeps as the sweeper leaves them, without a trial being run."""

import math
from datetime import timedelta

from sqlalchemy import insert

from shoal.core.jobs import JobSpec
from shoal.core.schema import utcnow
from shoal.core.sweeps import Between, Choice, SweepSpec
from shoal.server.models.sweeps import Sweep, Trial
from shoal.server.sweeps import service as sweeps
from shoal.testing.server import add_source

SPACE = {
    "lr": Between(low=1e-5, high=1e-1, log=True),
    "hidden": Choice(values=[64, 128, 256, 512]),
    "act": Choice(values=["relu", "gelu"]),
}


def spec_of(source_id, name="look", **given):
    job = JobSpec(name=name, entry=["train.py", "--epochs", "3"], source_id=source_id)
    return SweepSpec(**{"name": name, "job": job, "space": SPACE, "search": "tpe", "trials": 24, "parallel": 2} | given)


def params_of(number):
    return {
        "lr": 10 ** (-5 + (number * 0.37) % 4),
        "hidden": 64 << (number * 7 % 4),
        "act": ("relu", "gelu")[number % 2],
    }


def result_of(params):
    """Best at lr 1e-3 with many hidden."""
    return 0.2 + (math.log10(params["lr"]) + 3) ** 2 / 4 + 20 / params["hidden"] + 0.1 * (params["act"] == "relu")


def state_of(number):
    return {5: "failed", 7: "pruned", 11: "skipped", 13: "reused"}.get(number, "done")


def add_sweep(ctx, person, name="look", *, trials=24, state="finished", job_id=None, source_id=None, **given):
    """Returns its id. One that runs has its last trial running and two more to come."""
    ended = state != "running"
    spec = spec_of(
        source_id or add_source(ctx, person), name, **{"trials": max(1, trials + (0 if ended else 2))} | given
    )
    made = sweeps.create(ctx, person.access(), spec)
    now = utcnow()
    rows = []
    for number in range(trials):
        usual = params_of(number)
        params = {key: usual.get(key, getattr(axis, "values", [0.5])[0]) for key, axis in spec.space.items()}
        runs = not ended and number == trials - 1
        how = "running" if runs else state_of(number)
        result = None if how in ("failed", "skipped") or runs else result_of(params_of(number))
        rows.append(
            {
                "sweep_id": made.id, "number": number, "params": params, "key": f"{number}", "job_id": job_id,
                "job_name": f"{name}-{number}", "state": how, "reason": "KeyError: 'label'" if how == "failed" else None,
                "result": result, "reports": 3, "step": 30, "curve": [], "seconds": None if runs else 40.0 + number,
                "created_at": now - timedelta(minutes=30 - number / 1e3), "ended_at": None if runs else now,
            }
        )  # fmt: skip

    def work(session):
        if rows:
            session.execute(insert(Trial), rows)
        sweep = session.get_one(Sweep, made.id)
        told = [(row["result"], row["number"]) for row in rows if row["result"] is not None]
        sweep.best = min(told)[1] if told else None
        sweep.state, sweep.created_at = state, now - timedelta(minutes=31)
        sweep.ended_at = now - timedelta(minutes=2) if ended else None

    ctx.db.write(work)
    return made.id
