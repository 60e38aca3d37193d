"""The Slurm engine keeps the treaty, on a real cluster. These agents are real; they find no server and ask on, until they are ended."""

import json
import os
from pathlib import Path

import psutil
import pytest

from shoal.engines.base import AgentState
from shoal.engines.slurm.engine import SlurmEngine
from shoal.engines.slurm.options import SlurmOptions
from shoal.engines.slurm.site import Site
from shoal.testing import slurm
from shoal.testing.engines import EngineContract, eventually, make_gang
from shoal.testing.processes import command, environment

pytestmark = pytest.mark.skipif(slurm.missing() is not None, reason=str(slurm.missing()))


@pytest.fixture(scope="module")
def cluster():
    with slurm.slurm_cluster(nodes=2, cpus=4) as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.env.items():
            patch.setenv(name, value)
        yield cluster


@pytest.fixture
def reopen(cluster, tmp_path):
    def reopen():
        engine = SlurmEngine("slurm", SlurmOptions(squeue_every_s=1), home=str(tmp_path), site=Site())
        engine.prepare()
        return engine

    return reopen


@pytest.fixture
def engine(reopen, cluster, gang):
    engine = reopen()
    yield engine
    engine.cancel(gang.attempt_id)
    for process in processes_of(gang):
        process.kill()  # salvages would ask for the server for days
    eventually(lambda: not cluster.queue() and not cluster.processes(), 30)


@pytest.fixture
def gang(tmp_path):
    return make_gang(tmp_path / "nodes")


@pytest.fixture
def count_agents(gang):
    return lambda: len(agents_of(gang))


def processes_of(gang):
    folder, found = str(Path(gang.nodes[0].work_dir).parent), []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(folder in w for w in process.info["cmdline"] or []):
            found.append(process)
    return found


def agents_of(gang):
    return [
        p
        for p in processes_of(gang)
        if p.info["cmdline"][1:3] == ["-m", "shoal.agent"] and "--salvage" not in p.info["cmdline"]
    ]


class TestSlurmEngine(EngineContract):
    pass


def both_alive(engine, gang):
    eventually(lambda: all((Path(n.work_dir) / "agent.json").exists() for n in gang.nodes))
    eventually(lambda: all(engine.status(gang.attempt_id, n.node) is AgentState.ALIVE for n in gang.nodes))


def test_no_process_shows_the_token_and_every_node_is_told_where_it_is(engine, gang, cluster):
    engine.start(gang)
    both_alive(engine, gang)
    for process in [*cluster.processes(), *processes_of(gang)]:
        shown = command(process) + str(environment(process))
        assert gang.nodes[0].token not in shown
    launches = [json.loads((Path(n.work_dir) / "launch.json").read_text()) for n in gang.nodes]
    assert {launch["machine"] for launch in launches} <= {"slurm:c1", "slurm:c2"}
    assert [launch["slots"] for launch in launches] == [[0], [0]]
    assert {launch["cpu_threads"] for launch in launches} == {2}


def test_an_agent_that_dies_is_gone_within_two_seconds_and_the_other_lives(engine, gang):
    engine.start(gang)
    both_alive(engine, gang)
    os.kill(json.loads((Path(gang.nodes[1].work_dir) / "agent.json").read_text())["pid"], 9)
    eventually(lambda: engine.status(gang.attempt_id, 1) is AgentState.GONE, 4)
    assert engine.status(gang.attempt_id, 0) is AgentState.ALIVE


def test_what_has_no_room_waits_and_says_why(engine, gang, tmp_path):
    engine.start(gang)
    other = make_gang(tmp_path / "nodes", "att_large", num_nodes=4)
    engine.start(other)
    eventually(lambda: engine.waits("att_large") is not None and "Resources" in engine.waits("att_large"))
    assert engine.status("att_large", 0) is AgentState.WAITING
    engine.cancel("att_large")
    assert engine.status("att_large", 0) is not AgentState.WAITING


def test_while_the_controller_is_down_agents_live_and_are_found_again(engine, gang, cluster, reopen):
    engine.start(gang)
    both_alive(engine, gang)
    cluster.stop_controller()
    try:
        eventually(lambda: engine.status(gang.attempt_id, 0) is AgentState.ALIVE and bool(engine.probe()), 40)
        assert len(agents_of(gang)) == 2
    finally:
        cluster.start_controller()
    eventually(lambda: reopen().adopt() == {gang.attempt_id})


def test_the_site_s_own_scancel_reaches_the_agents_as_a_sigterm_first(engine, gang, cluster):
    engine.start(gang)
    both_alive(engine, gang)
    cluster.run("scancel", "--user=root")
    eventually(lambda: all(engine.status(gang.attempt_id, n.node) is AgentState.GONE for n in gang.nodes))
    assert all((Path(n.work_dir) / "gone").exists() for n in gang.nodes)


def test_gpus_of_one_machine_are_given_to_nodes_apart(tmp_path, gang, monkeypatch):
    with slurm.slurm_cluster(nodes=1, cpus=8, gpus=2) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
        engine = SlurmEngine("slurm", SlurmOptions(squeue_every_s=1), home=str(tmp_path), site=Site())
        engine.prepare()
        [machine] = engine.capacity()
        assert (machine.kind, machine.slots) == ("cuda", 2)
        for node in gang.nodes:
            node.slot_kind, node.slots = "cuda", [0]
        engine.start(gang)
        both_alive(engine, gang)
        launches = [json.loads((Path(n.work_dir) / "launch.json").read_text()) for n in gang.nodes]
        engine.cancel(gang.attempt_id)
        for process in processes_of(gang):
            process.kill()
    assert sorted(launch["slots"] for launch in launches) == [[0], [1]]
    assert {launch["cpu_threads"] for launch in launches} == {4}
