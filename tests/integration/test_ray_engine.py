"""Ray keeps the treaty, on two hosts; plus what is its own: who dies, who is cut off, who comes back, and who may not come in."""

import re
import subprocess
import time
from contextlib import suppress

import httpx
import psutil
import pytest
from marks import takes_minutes
from ray_hosts import ray_hosts

from shoal.engines.base import AgentState, Gang
from shoal.engines.identity import holder
from shoal.engines.ray.daemon import SIGNATURE
from shoal.testing import hosts as fake_hosts
from shoal.testing.engines import EngineContract, eventually, make_gang, stand_in, stand_ins_of
from shoal.testing.extras import needs
from shoal.testing.patience import patient

pytestmark = [
    pytest.mark.integration,
    needs("ray"),
    pytest.mark.skipif(fake_hosts.missing() is not None, reason=str(fake_hosts.missing())),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def cluster(folder):
    with ray_hosts(folder, stand_in(folder), "anna", "berta") as hosts:
        yield hosts


@pytest.fixture
def engine(cluster, gang, folder):
    cluster.all_up()
    yield cluster.engine
    cluster.engine.cancel(gang.attempt_id)
    eventually(lambda: not stand_ins_of(folder))
    cluster.engine.clean(gang.attempt_id)


@pytest.fixture
def reopen(cluster):
    opened = []

    def again():
        opened.append(cluster.open())
        eventually(lambda: not any(m.state == "lost" for m in opened[-1].capacity()))
        return opened[-1]

    yield again
    for engine in opened:
        engine.close()


@pytest.fixture
def gang(cluster, folder, request):
    return gang_on(cluster, folder, "att_" + re.sub(r"\W", "_", request.node.name)[-40:])


def gang_on(cluster, folder, attempt_id):
    gang = make_gang(folder, attempt_id, machines=cluster.nodes_dirs())
    python = cluster.machines()[0].python
    return Gang(attempt_id=gang.attempt_id, nodes=[n.model_copy(update={"python": python}) for n in gang.nodes])


@pytest.fixture
def count_agents(folder):
    return lambda: len(stand_ins_of(folder))


class TestRayEngine(EngineContract):
    pass


def start(engine, gang, folder):
    engine.start(gang)
    # After Ray has come back on a machine, what starts agents there has to start first.
    eventually(lambda: len(stand_ins_of(folder)) == len(gang.nodes), 60)
    eventually(lambda: states(engine, gang) == [AgentState.ALIVE] * len(gang.nodes))


def states(engine, gang):
    return [engine.status(gang.attempt_id, node.node) for node in gang.nodes]


def on(host, name):
    return [p for p in host.processes() if p.name() == name]


def test_a_killed_agent_is_gone_within_two_seconds_and_the_others_are_not(engine, gang, folder, cluster):
    start(engine, gang, folder)
    there = {p.pid for p in cluster.net["anna"].processes()}
    # The guard has the agent's words on its command line, and the agent below it.
    [agent] = [p for p in stand_ins_of(folder) if p.pid in there and not p.children()]
    began = time.monotonic()
    agent.kill()
    eventually(lambda: states(engine, gang) == [AgentState.GONE, AgentState.ALIVE], 5)
    assert time.monotonic() - began < 2
    assert engine.adopt() == {gang.attempt_id}


def test_a_machine_whose_disk_is_full_refuses_nodes_until_it_has_room(engine, cluster):
    host = cluster.net["berta"]

    def refusals():
        return {m.name: m.refuses for m in engine.capacity()}

    eventually(lambda: refusals() == {"anna": "", "berta": ""}, 30)
    assert host.run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(host.home)).returncode == 0
    try:
        eventually(lambda: refusals() == {"anna": "", "berta": "out of disk space (1 MiB free)"}, 30)
    finally:
        host.run("umount", "-l", str(host.home))
    eventually(lambda: refusals() == {"anna": "", "berta": ""}, 30)


def test_a_killed_raylet_takes_its_agents_along_and_comes_back_by_itself(engine, gang, folder, cluster):
    start(engine, gang, folder)
    host = cluster.net["anna"]
    [raylet] = on(host, "raylet")
    began = time.monotonic()
    raylet.kill()
    eventually(lambda: states(engine, gang) == [AgentState.GONE, AgentState.ALIVE], 20)
    assert time.monotonic() - began < 3
    eventually(lambda: len(stand_ins_of(folder)) == 1, 5)
    cluster.all_up()
    assert on(host, "raylet") != [raylet]


def test_agents_outlive_the_gateway_and_are_found_by_the_next(engine, gang, folder, cluster):
    start(engine, gang, folder)
    _, before = cluster.head.driver()
    [process] = [p for p in psutil.process_iter(["cmdline"]) if is_gateway(p, cluster)]
    process.kill()
    eventually(lambda: cluster.head.driver()[1] != before, 60)
    assert states(engine, gang) == [AgentState.ALIVE] * 2
    assert len(stand_ins_of(folder)) == 2
    engine.cancel(gang.attempt_id)
    eventually(lambda: AgentState.ALIVE not in states(engine, gang))
    assert not stand_ins_of(folder)


def is_gateway(process, cluster):
    line = process.info["cmdline"] or []
    return line[1:] == ["-m", "shoal.engines.ray.driver", str(cluster.head.folder)]


@takes_minutes
@pytest.mark.parametrize("which", ["gcs_server", "supervisor"])
def test_a_head_that_dies_comes_back_by_itself_and_takes_new_work(engine, gang, folder, cluster, which):
    start(engine, gang, folder)
    [process] = [holder(cluster.head.folder / SIGNATURE)] if which == "supervisor" else of_the_head(cluster, which)
    process.kill()
    process.wait(10)
    cluster.head.ensure()
    token = {"Authorization": f"Bearer {cluster.head.token_file.read_text()}"}
    dashboard = f"http://127.0.0.1:{cluster.head.info().dashboard_port}/api/version"
    assert httpx.get(dashboard, headers=token).status_code == 200, "it says it is up once Ray answers"
    eventually(lambda: AgentState.ALIVE not in states(engine, gang), 180)
    eventually(lambda: not stand_ins_of(folder), 60)
    cluster.all_up(180)
    after = gang_on(cluster, folder, f"{gang.attempt_id}_after")
    start(engine, after, folder)
    engine.cancel(after.attempt_id)
    eventually(lambda: not stand_ins_of(folder))
    engine.clean(after.attempt_id)


def of_the_head(cluster, name=None):
    """Ray's processes there, by what the supervisor puts into their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("RAY_SHOAL_FOLDER") == str(cluster.head.folder) and name in (None, process.name()):
                found.append(process)
    return found


def ports_of(process):
    with suppress(psutil.NoSuchProcess):
        return [c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return []


@takes_minutes
def test_a_cut_off_machine_is_lost_in_time_and_rejoins_by_itself(engine, gang, folder, cluster):
    start(engine, gang, folder)
    host = cluster.net["berta"]
    host.cut()
    began = time.monotonic()
    try:
        eventually(lambda: cluster.states()["berta"] == "lost", 60)
        assert time.monotonic() - began < 30
        eventually(lambda: states(engine, gang) == [AgentState.ALIVE, AgentState.GONE], 30)
    finally:
        host.mend()
    cluster.all_up()
    # Its agent ended with the Ray it came from, before the new one said it was there.
    eventually(lambda: len(stand_ins_of(folder)) == 1, 5)


def test_nobody_comes_in_without_the_token(cluster):
    info = cluster.head.info()
    for headers in ({}, {"Authorization": "Bearer guessed"}):
        answer = httpx.get(f"http://127.0.0.1:{info.dashboard_port}/api/jobs/", headers=headers)
        assert answer.status_code in (401, 403)
        assert httpx.get(f"{cluster.head.driver()[0]}/state?after=-1&wait_s=0", headers=headers).status_code == 404
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{info.address}:{info.dashboard_port}/api/version", timeout=patient(5))
    for port in {port for process in of_the_head(cluster) for port in ports_of(process)}:
        with suppress(httpx.HTTPError):  # most do not speak HTTP
            assert httpx.get(f"http://{info.address}:{port}/metrics", timeout=patient(5)).status_code != 200, port
    assert cluster.head.token_file.stat().st_mode & 0o077 == 0
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert cluster.head.token_file.read_text() not in shown
    assert cluster.head.driver_token() not in shown


def test_a_gang_that_finds_no_room_is_never_started_and_says_so(engine, gang, folder, cluster):
    engine.start(gang)
    eventually(lambda: states(engine, gang) == [AgentState.ALIVE] * 2)
    greedy = [n.model_copy(update={"attempt_id": "att_greedy", "slots": [0, 1]}) for n in gang.nodes]
    engine.start(Gang(attempt_id="att_greedy", nodes=greedy))
    eventually(lambda: engine.status("att_greedy", 0) is AgentState.UNKNOWN, 40)
    engine.clean("att_greedy")
    assert states(engine, gang) == [AgentState.ALIVE] * 2


@takes_minutes
def test_a_killed_host_is_noticed_and_nothing_waits_for_it(engine, gang, folder, cluster):
    start(engine, gang, folder)
    host = cluster.net["anna"]
    began = time.monotonic()
    host.kill()
    eventually(lambda: states(engine, gang) == [AgentState.GONE, AgentState.ALIVE], 60)
    assert time.monotonic() - began < 30
    engine.cancel(gang.attempt_id)
    eventually(lambda: not stand_ins_of(folder), 10)
    host.boot()
    cluster.join(host)
    cluster.all_up()
