"""Workers of a gang start when every node is prepared, and meet at a port that node 0 chooses then."""

import pytest
from queueworld import TwoMachines, World

from shoal.core.agents import JoinRequest, ReadyRequest
from shoal.core.states import NodeState
from shoal.server.jobs import agents
from shoal.server.jobs.start_barrier import StartBarrier
from shoal.server.policy import AgentIdentity


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, TwoMachines())
    yield world
    world.ctx.db.close()


def joined(world, nodes):
    job = world.submit(min_nodes=nodes, max_nodes=nodes)
    world.scheduler.pass_once()
    attempt = world.attempt(job)
    gang = [AgentIdentity(job, attempt.id, attempt.number, node) for node in range(nodes)]
    for who in gang:
        port = 20000 + who.node
        request = JoinRequest(pid=1, boot_id=f"b{who.node}", host="h", address=f"10.0.0.{who.node}", port=port)
        reply = agents.join(world.ctx, who, request)
    return gang, reply


def ready(world, who, port=None):
    return agents.ready(world.ctx, who, ReadyRequest(port=port))


def test_nobody_starts_before_the_last_node_is_prepared_and_node_0_chooses_the_port_then(world):
    gang, reply = joined(world, 3)
    assert reply.start_barrier
    assert not ready(world, gang[0]).go and not ready(world, gang[0]).choose_port
    assert not ready(world, gang[1]).go
    last = ready(world, gang[2])
    assert not last.go, "there is no port yet"
    assert ready(world, gang[0]).choose_port and not ready(world, gang[1]).go
    start = ready(world, gang[0], port=31000)
    assert start.go and (start.master_addr, start.master_port) == ("10.0.0.0", 31000)
    assert [ready(world, who).model_dump() for who in gang] == [start.model_dump()] * 3
    assert ready(world, gang[0], port=31001).master_port == 31000, "the reply was lost: the first port counts"


def test_a_port_that_comes_too_early_is_not_taken(world):
    gang, _ = joined(world, 2)
    assert not ready(world, gang[0], port=31000).go
    ready(world, gang[1])
    assert ready(world, gang[0]).choose_port


def test_after_a_restart_of_the_server_the_others_follow_a_node_that_has_started(world):
    gang, _ = joined(world, 2)
    ready(world, gang[0]), ready(world, gang[1])
    assert ready(world, gang[0], port=31000).go
    world.ctx.starts = StartBarrier()
    assert not ready(world, gang[1]).go, "whether node 0 has heard of it is not known"
    world.beat_as(gang[0], state=NodeState.RUNNING)
    late = ready(world, gang[1])
    assert late.go and late.master_port == 31000


def test_a_single_node_has_nobody_to_wait_for(world):
    _, reply = joined(world, 1)
    assert not reply.start_barrier


def test_a_gang_that_is_given_up_never_starts(world):
    gang, _ = joined(world, 2)
    ready(world, gang[0])
    world.beat_as(gang[0], state=NodeState.EXITED, exit_code=1, reason="no room for the data")
    assert not ready(world, gang[1]).go


def test_attempts_that_are_over_are_forgotten():
    now = [0.0]
    barrier = StartBarrier(clock=lambda: now[0])
    assert barrier.arrive("a", 0) == {0} and barrier.arrive("a", 1) == {0, 1}
    now[0] = 7200.0
    barrier.arrive("b", 0)
    assert barrier.arrive("a", 1) == {1}
