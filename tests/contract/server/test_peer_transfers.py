"""Nodes are told who else has their data: the whole gang the same, and nobody of what another workspace has."""

import pytest
from queueworld import TwoMachines, World
from sqlalchemy import select

from shoal.core.agents import JoinRequest
from shoal.core.artifacts import Manifest
from shoal.core.datasets import DatasetBegin
from shoal.core.states import NodeState
from shoal.server.artifacts import datasets
from shoal.server.jobs import agents
from shoal.server.models.jobs import Attempt
from shoal.server.policy import AgentIdentity


class Givers(World):
    """Each person has a dataset; all of them have the same content."""

    def __init__(self, home):
        super().__init__(home, TwoMachines())
        for person in (self.anna, self.berta):
            begun = datasets.begin(self.ctx, person.access(), DatasetBegin(name="words"))
            datasets.commit(self.ctx, person.access(), begun.id, Manifest(files=[]))

    def enter(self, person, *, nodes=1, first_port=30000, giving=True):
        """A job with the dataset, whose nodes join; what each was told of it at last, and its attempt."""
        job = self.submit(person=person, min_nodes=nodes, max_nodes=nodes, datasets=["words"])
        self.scheduler.pass_once()
        with self.ctx.db.read() as session:
            attempt = session.scalars(select(Attempt).where(Attempt.job_id == job)).one()
        for _ in range(2):
            replies = [self.join(attempt, n, first_port + n if giving else None) for n in range(nodes)]
        return [next(iter(r.neighbours.values()), None) for r in replies], job

    def join(self, attempt, node, port):
        who = AgentIdentity(attempt.job_id, attempt.id, attempt.number, node)
        asked = JoinRequest(pid=1, boot_id="b", host="h", address="10.0.0.5", port=20000, giver_port=port)
        return agents.join(self.ctx, who, asked)


@pytest.fixture
def world(tmp_path):
    world = Givers(tmp_path)
    yield world
    world.ctx.db.close()


def test_a_gang_is_told_of_all_its_nodes_and_each_of_itself(world):
    told, _ = world.enter(world.anna, nodes=3)
    assert [t.own for t in told] == [f"10.0.0.5:{port}" for port in (30000, 30001, 30002)]
    assert all(t.gang == [n.own for n in told] and not t.holders and t.key == told[0].key for t in told)


def test_nodes_that_run_are_named_to_other_jobs_of_the_workspace_until_they_end(world):
    [first], job = world.enter(world.anna)
    [early], _ = world.enter(world.anna, first_port=31000)
    assert early.holders == [], "who still gets it itself has not all of it"
    world.beat(job, state=NodeState.RUNNING)
    [second], _ = world.enter(world.anna, first_port=32000)
    assert second.holders == [first.own] and second.gang == [second.own] and second.key == first.key
    world.end(job)
    [third], _ = world.enter(world.anna, first_port=33000)
    assert third.holders == []


def test_who_has_the_same_data_in_another_workspace_is_told_neither_of_it_nor_its_key(world):
    [mine], job = world.enter(world.anna)
    world.beat(job, state=NodeState.RUNNING)
    [theirs], _ = world.enter(world.berta, first_port=31000)
    assert theirs.holders == [] and theirs.gang == [theirs.own]
    assert theirs.key != mine.key


def test_a_node_that_reads_the_store_itself_is_told_nothing(world):
    assert world.enter(world.anna, nodes=2, giving=False)[0] == [None, None]
