"""The local engine keeps the treaty; plus what is its own: stale pids after a reboot."""

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from shoal.core.boot import boot_id
from shoal.engines.base import AgentState, Gang
from shoal.engines.local import LocalEngine
from shoal.engines.local.prefork import PreforkParent
from shoal.testing.engines import EngineContract, eventually, make_gang, stand_in, stand_ins_of


@pytest.fixture
def python(tmp_path):
    return stand_in(tmp_path)


@pytest.fixture
def reopen(tmp_path, python):
    return lambda: LocalEngine(tmp_path / "nodes", slots=4, python=python)


@pytest.fixture
def engine(reopen, tmp_path):
    engine = reopen()
    yield engine
    for process in stand_ins_of(tmp_path):
        process.kill()
    psutil.wait_procs(stand_ins_of(tmp_path), timeout=10)


@pytest.fixture
def gang(tmp_path):
    return make_gang(tmp_path / "nodes")


@pytest.fixture
def count_agents(tmp_path):
    return lambda: len(stand_ins_of(tmp_path))


class TestLocalEngine(EngineContract):
    pass


def _kill_processes_of(work_dir):
    """Kill the processes that name the directory, and return them."""
    found = [p for p in psutil.process_iter(["cmdline"]) if work_dir in (p.info["cmdline"] or [])]
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return found


@pytest.fixture(scope="module")
def prefork(tmp_path_factory):
    prefork = PreforkParent(sys.executable, {}, tmp_path_factory.mktemp("prefork") / "log")
    yield prefork
    prefork.close()


class TestLocalEngineWithWarmAgents(EngineContract):
    """These agents are real; they find no server and ask on, until they are ended."""

    @pytest.fixture
    def reopen(self, tmp_path, prefork):
        warm = make_gang(tmp_path / "warm-up", num_nodes=1).nodes[0]
        Path(warm.work_dir).mkdir(parents=True)
        (Path(warm.work_dir) / "launch.json").write_text(warm.model_dump_json())
        found = []

        def asked():
            agent = prefork.agent(Path(warm.work_dir) / "launch.json", 1)
            found.extend([agent] if agent else [])
            return bool(found)

        eventually(asked, 60)
        found[0].kill()
        found[0].wait()
        return lambda: LocalEngine(tmp_path / "nodes", slots=4, prefork=prefork)

    @pytest.fixture
    def engine(self, reopen, gang):
        engine = reopen()
        yield engine
        engine.cancel(gang.attempt_id)
        eventually(
            lambda: not _kill_processes_of(gang.nodes[0].work_dir)
        )  # recoveries would ask for the server for days

    @pytest.fixture
    def gang(self, tmp_path):
        [node] = make_gang(tmp_path / "nodes", num_nodes=1).nodes
        return Gang(attempt_id=node.attempt_id, nodes=[node.model_copy(update={"python": sys.executable})])

    @pytest.fixture
    def count_agents(self, tmp_path):
        def is_one(line):
            return "shoal.agent" in line and f"{tmp_path}/nodes" in " ".join(line)

        def count():
            found = {p.pid: p for p in psutil.process_iter(["cmdline", "ppid"]) if is_one(p.info["cmdline"] or [])}
            # A worker-to-be looks like its agent until it has put on its own name.
            return sum(p.info["ppid"] not in found for p in found.values())

        return count

    def test_they_come_from_the_prefork_parent_and_outlive_it(self, engine, gang, prefork):
        engine.start(gang)
        directory = Path(gang.nodes[0].work_dir)
        eventually(lambda: (directory / "agent.json").exists())
        agent = psutil.Process(json.loads((directory / "agent.json").read_text())["pid"])
        assert agent.ppid() == prefork.pid
        prefork.close()
        assert engine.status(gang.attempt_id, 0) is AgentState.ALIVE
        engine.cancel(gang.attempt_id)
        assert engine.status(gang.attempt_id, 0) is AgentState.GONE
        assert not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE


def test_the_launch_file_is_for_the_owner_only(engine, gang):
    engine.start(gang)
    for node in gang.nodes:
        assert (Path(node.work_dir) / "launch.json").stat().st_mode & 0o077 == 0


def test_an_agent_from_before_a_reboot_is_gone_even_if_its_pid_is_taken(engine, tmp_path):
    stale = tmp_path / "nodes" / "att_old.0"
    stale.mkdir(parents=True)
    (stale / "launch.json").write_text("{}")
    me = psutil.Process()
    record = {"pid": me.pid, "create_time": me.create_time(), "boot_id": boot_id()}
    (stale / "agent.json").write_text(json.dumps(record))
    assert engine.status("att_old", 0) is AgentState.ALIVE
    (stale / "agent.json").write_text(json.dumps(record | {"boot_id": "another boot"}))
    assert engine.status("att_old", 0) is AgentState.GONE
    (stale / "agent.json").write_text(json.dumps(record | {"create_time": me.create_time() - 500}))
    assert engine.status("att_old", 0) is AgentState.GONE


def test_an_agent_whose_server_died_before_it_was_let_go_is_not_waited_for(engine, tmp_path):
    (tmp_path / "nodes" / "att_torn.0").mkdir(parents=True)
    assert engine.status("att_torn", 0) is AgentState.UNKNOWN


def test_if_one_node_cannot_start_none_is_left_running(engine, gang, tmp_path):
    blocked = Path(gang.nodes[1].work_dir)
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file where the directory should be")
    with pytest.raises(OSError, match=r"exists|directory"):
        engine.start(gang)
    eventually(lambda: not stand_ins_of(tmp_path))


def test_slots_are_half_the_cores_unless_set(tmp_path):
    [machine] = LocalEngine(tmp_path).capacity()
    if machine.kind == "cpu":
        assert machine.slots == max(1, (os.cpu_count() or 1) // 2)
    assert LocalEngine(tmp_path, slots=7).capacity()[0].slots == 7


def test_the_engine_of_a_copied_directory_leaves_the_agents_of_the_original_alone(engine, gang, tmp_path, python):
    engine.start(gang)
    eventually(lambda: engine.adopt() == {gang.attempt_id})
    before = {process.pid for process in stand_ins_of(tmp_path)}
    shutil.copytree(tmp_path / "nodes", tmp_path / "copied-home" / "nodes")
    copied = LocalEngine(tmp_path / "copied-home" / "nodes", slots=4, python=python)
    assert copied.adopt() == set()
    assert copied.status(gang.attempt_id, 0) is AgentState.GONE
    copied.salvage(gang.attempt_id, 0)
    copied.cancel(gang.attempt_id)
    assert {process.pid for process in stand_ins_of(tmp_path)} == before


def test_agents_that_have_ended_are_let_go_when_the_next_are_started(engine, gang, tmp_path):
    engine.start(gang)
    eventually(lambda: len(stand_ins_of(tmp_path)) == len(gang.nodes))
    pids = [process.pid for process in stand_ins_of(tmp_path)]
    for pid in pids:
        psutil.Process(pid).kill()
    eventually(lambda: all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pids))
    engine.start(make_gang(tmp_path / "nodes", "att_next", num_nodes=1))
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert engine.status(gang.attempt_id, 0) is AgentState.GONE
