"""Sweeps on machines whose agents say what the test says."""

import json
import time

import zstandard
from queueworld import TwoMachines, World
from sqlalchemy import select

from shoal.core.jobs import JobSpec
from shoal.core.states import NodeState
from shoal.core.sweeps import Choice, SweepSpec
from shoal.server.jobs import streams
from shoal.server.models.jobs import Attempt, Job
from shoal.server.policy import AgentIdentity
from shoal.server.sweeper.loop import Sweeper
from shoal.server.sweeps import service as sweeps


class SweepWorld(World):
    def __init__(self, home, slots=4):
        super().__init__(home, TwoMachines(slots=slots))
        self.sweeper = Sweeper(self.ctx, store_every_s=0.0)
        self.access = self.anna.access()
        self.sent = {}

    def spec(self, name="s", *, job=None, **given):
        values = {"space": {"lr": Choice(values=[1, 2, 3, 4])}, "metric": "loss", **given}
        made = JobSpec(
            **{"name": name, "entry": ["train.py"], "source_id": self.sources[self.anna.email], **(job or {})}
        )
        return SweepSpec(name=name, job=made, **values)

    def begin(self, name="s", **given):
        return sweeps.create(self.ctx, self.access, self.spec(name, **given))

    def restart(self):
        """Replace the sweeper by a new one, as after a kill."""
        self.ctx.live._watchers.clear()
        self.sweeper = Sweeper(self.ctx, store_every_s=0.0)

    def go(self):
        """All there is to do now is done, and what was begun is running."""
        self.sweeper.pass_once()
        self.tick()
        self.sweeper.pass_once()

    def sweep(self, name="s"):
        return sweeps.get(self.ctx, self.access, name)

    def trials(self, name="s", **how):
        return sweeps.trials(self.ctx, self.access, name, **{"limit": 1000, **how})

    def jobs(self):
        with self.ctx.db.read() as session:
            return list(session.scalars(select(Job).order_by(Job.id)))

    def active(self):
        return [job for job in self.jobs() if job.ended_at is None]

    def report(self, job, *values, step=0, kind="e", name="loss"):
        """Through the agent of its newest attempt."""
        job_id = self.view(job).id
        with self.ctx.db.read() as session:
            newest = select(Attempt).where(Attempt.job_id == job_id).order_by(-Attempt.number)
            attempt = session.scalars(newest).first()
        first = self.sent.get(attempt.id, 0)
        lines = [
            {"t": time.time(), "s": line, "q": line, "rank": 0, "k": kind, "i": step + at, "v": {name: value}}
            for at, (line, value) in enumerate(enumerate(values, first))
        ]
        body = zstandard.compress("\n".join(map(json.dumps, lines)).encode())
        who = AgentIdentity(job_id, attempt.id, attempt.number, 0)
        self.sent[attempt.id] = streams.append(self.ctx, who, "metric", first, len(lines), body).next_seq

    def finish(self, job, code=0, *, final=True, **report):
        """Its script ends; with `final`, all it had to say has come."""
        job_id = self.view(job).id
        failed = {"failed_rank": 0} if code else {}
        self.beat(job_id, state=NodeState.EXITED, exit_code=code, final=final, **failed, **report)

    def stopped(self, job):
        """Its agent ends it, as it was told to."""
        self.finish(job, -15, told=True)

    def run_all(self, loss=lambda params: params["lr"], *, name="s", restart=False):
        """Every trial reports once and ends well; returns how many ran at most."""
        most = 0
        while self.sweep(name).ended_at is None:
            if restart:
                self.restart()
            self.go()
            running = [t for t in self.trials(name) if t.state == "running"]
            most = max(most, len(running))
            for trial in running:
                self.report(trial.job, float(loss(trial.params)))
                self.finish(trial.job)
        return most
