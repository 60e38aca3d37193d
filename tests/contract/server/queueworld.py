"""A server with two machines whose agents are alive, and say what the test says."""

import itertools

from sqlalchemy import select

from shoal.core.agents import BeatRequest, JoinRequest
from shoal.core.jobs import JobSpec
from shoal.core.states import NodeState
from shoal.engines.base import AgentState, Machine
from shoal.server.jobs import agents
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Attempt
from shoal.server.policy import AgentIdentity
from shoal.server.queue import quotas
from shoal.server.scheduler.loop import Scheduler
from shoal.testing.server import AppClient, IdleEngine, add_person, add_source, make_app, make_context


class TwoMachines(IdleEngine):
    """Its agents are alive, and say what the test says."""

    def __init__(self, slots=4, names=("x", "y")):
        super().__init__(slots)
        self.names = names

    def capacity(self):
        return [Machine(name=name, kind="cpu", slots=self.slots) for name in self.names]

    def status(self, attempt_id, node):
        return AgentState.ALIVE


class World:
    def __init__(self, home, engine):
        self.ctx = make_context(home, private=False, engine=engine)
        self.anna = add_person(self.ctx, "anna@example.org", is_admin=True)
        self.berta = add_person(self.ctx, "berta@example.org")
        self.sources = {p.email: add_source(self.ctx, p) for p in (self.anna, self.berta)}
        self.scheduler = Scheduler(self.ctx, "http://nowhere")
        self.app = make_app(self.ctx)
        self.as_anna, self.as_berta = AppClient(self.app, self.anna.key), AppClient(self.app, self.berta.key)
        self.names = itertools.count()

    def submit(self, name=None, person=None, **wishes):
        person = person or self.anna
        name = name or f"j{next(self.names)}"
        wishes = {"entry": ["train.py"], "source_id": self.sources[person.email], **wishes}
        spec = JobSpec(name=name, **wishes)
        return jobs.submit(self.ctx, person.access(), spec).id

    def view(self, job_id, person=None):
        return jobs.get(self.ctx, (person or self.anna).access(), job_id)

    def tick(self):
        """One pass, and what it started is running."""
        self.scheduler.pass_once()
        with self.ctx.db.read() as session:
            starting = list(session.scalars(select(Attempt).where(Attempt.state == "starting")))
        for attempt in starting:
            for node in range(attempt.num_nodes):
                who = AgentIdentity(attempt.job_id, attempt.id, attempt.number, node)
                agents.join(self.ctx, who, JoinRequest(pid=1, boot_id="b", host="h", address="127.0.0.1", port=20000))
            for node in range(attempt.num_nodes):
                self.beat(attempt.job_id, node, state=NodeState.RUNNING)

    def attempt(self, job_id):
        """The newest."""
        with self.ctx.db.read() as session:
            return session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(-Attempt.number)).first()

    def beat(self, job_id, node=0, **report):
        attempt = self.attempt(job_id)
        return self.beat_as(AgentIdentity(job_id, attempt.id, attempt.number, node), **report)

    def beat_as(self, who, **report):
        return agents.beat(self.ctx, who, BeatRequest(**report))

    def end(self, job_id, code=0, **report):
        self.beat(job_id, state=NodeState.EXITED, exit_code=code, **report)

    def held(self, person):
        with self.ctx.db.read() as session:
            return quotas.held(session, person.workspace_id)
