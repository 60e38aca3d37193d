"""A workspace of a researcher: two hundred runs of a small search, each setting with several seeds, with curves and samples.

Written through the services, before a server runs on it. The best setting and the best run are known beforehand.
"""

from __future__ import annotations

import functools
import math
import random
from pathlib import Path
from typing import Any

from corpus import picture
from filled import Filled, past, sign_in_as
from sqlalchemy import select
from web_run import Run, put

from shoal.core.artifacts import Manifest, SourceCommit
from shoal.core.run_params import params_of
from shoal.core.schema import utcnow
from shoal.core.settings import Layout, ServerSettings
from shoal.core.states import JobState
from shoal.server.artifacts import sources
from shoal.server.jobs.events import move
from shoal.server.models.jobs import Job
from shoal.server.models.users import User
from shoal.server.models.workspaces import Workspace
from shoal.server.run import open_context
from shoal.testing.server import Person, make_context

SETTINGS = [
    (lr, width, opt)
    for lr in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    for width in (64, 128, 256, 512)
    for opt in ("adam", "sgd")
]
SEEDS = 5
BEST = (1e-3, 256, "adam")
STEPS = 40


def end_of(lr: float, width: int, opt: str, seed: int) -> float:
    """Return the last loss of a run: lowest near the best setting, and a little different for each seed."""
    far = abs(math.log10(lr) + 3) + 0.3 * abs(math.log2(width) - 8) + (0.4 if opt == "sgd" else 0.0)
    return 0.5 + 0.4 * far + 0.02 * seed


def fill(home: Path) -> Filled:
    open_context(Layout(home), ServerSettings(slots=4)).db.close()
    ctx = make_context(home)
    try:
        with ctx.db.read() as session:
            owner = session.scalars(select(User)).one()
            workspace = session.scalars(select(Workspace)).one()
        me = Person(owner.id, owner.email, workspace.id, "", "key_none")
        made = Filled(sign_in_as(ctx, me), "", "")
        manifest = Manifest(files=[put(ctx, me, "train.py", b"import torch\n\nprint('training')\n")])
        source = sources.commit(ctx, me.access(), SourceCommit(manifest=manifest, origin={})).id
        rng = random.Random(11)
        for n, (lr, width, opt) in enumerate(SETTINGS):
            for seed in range(SEEDS):
                _run(ctx, me, made, source, f"s{n:02}-seed-{seed}", lr, width, opt, seed, rng)
        ctx.db.write(functools.partial(_end, made))
        return made
    finally:
        ctx.db.close()


def _run(ctx: Any, me: Person, made: Filled, source: str, name: str, lr: float, width: int, opt: str, seed: int,
         rng: random.Random) -> None:  # fmt: skip
    entry = ["train.py", "--lr", str(lr), "--width", str(width), "--opt", opt, "--seed", str(seed)]
    run = Run.of_source(ctx, me, name, source, entry=entry)
    made.jobs[name] = run.id
    end = end_of(lr, width, opt, seed)
    noise = [rng.gauss(0, 0.01) for _ in range(STEPS - 1)]
    losses = [end + 2 * math.exp(-i / 8) + noise[i] for i in range(STEPS - 1)] + [end]
    run.send("metric", *({"k": "s", "i": i, "t": 1.7e9 + i, "v": {"loss": v}} for i, v in enumerate(losses)))
    if (lr, width, opt) == BEST:
        for step in (10, 20, 39):
            run.show("samples", picture(step + 7 * seed), step=step)


def _end(made: Filled, session: Any) -> None:
    """All have ended: those with the largest learning rate and sgd failed."""
    for job_id in made.jobs.values():
        job = session.get_one(Job, job_id)
        words = job.spec["entry"]
        is_bad = words[2] == "0.01" and words[6] == "sgd"
        for state in ("starting", "running", "failed" if is_bad else "succeeded"):
            move(session, job, JobState(state), state, attempt=1)
            job.started_at = job.started_at or utcnow()
        past(job_id, 1.0, session)
        job.params = params_of(words, {})
