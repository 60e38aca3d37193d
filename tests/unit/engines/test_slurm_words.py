"""The Slurm engine and the words of Slurm's programs, which are played by scripts here; tests/contract has the real ones."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.errors import ShoalError, Unreachable
from shoal.engines.base import AgentState
from shoal.engines.slurm.engine import SlurmEngine
from shoal.engines.slurm.options import SlurmOptions
from shoal.engines.slurm.site import Site
from shoal.server.scheduler.decide import QueuedJob, QueueState, decide
from shoal.server.scheduler.machine_parts import split_machines
from shoal.testing.engines import eventually, make_gang

TOKEN = "secret-token-of-the-node"


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home with spaces"


@pytest.fixture
def reopen(programs, home):
    def reopen(**options):
        engine = SlurmEngine("hpc", SlurmOptions(**{"squeue_every_s": 0, **options}), home=str(home), site=Site())
        engine.prepare()
        return engine

    return reopen


@pytest.fixture
def gang(home):
    return make_gang(home / "nodes")


def test_machines_are_its_hosts_with_their_gpus_or_shares_of_cores(programs, reopen, home):
    programs.hosts(
        "c1|127.0.0.1|main*|5|(null)|idle|none",
        "c2|127.0.0.1|main*|16|gpu:4|mixed|none",
        "c3|127.0.0.1|main*|4|(null)|down*|dead",
        "c4|127.0.0.1|main*|1|(null)|idle|",
    )
    machines = {m.name: m for m in reopen().capacity()}
    assert {name: (m.kind, m.slots, m.state) for name, m in machines.items()} == {
        "hpc:c1": ("cpu", 2, "up"),
        "hpc:c2": ("cuda", 4, "up"),
        "hpc:c3": ("cpu", 2, "lost"),
    }
    assert machines["hpc:c3"].problems == ["Slurm says down*: dead"]
    assert machines["hpc:c1"].home == str(home)


def test_a_job_asks_for_a_task_per_node_and_tells_nobody_its_token(programs, reopen, gang):
    engine = reopen(partition="main", account="vision", qos="low", extra_args=["--mem-per-cpu=4G"])
    engine.start(gang)
    [call] = programs.calls
    assert " ".join(engine.plan(gang)[0].argv[1:]) == call
    for word in ("--ntasks=2", "--cpus-per-task=2", "--partition=main", "--account=vision", "--qos=low", "--mem-per-cpu=4G",
                 "--no-requeue", "--job-name=shoal-att_test"):  # fmt: skip
        assert word in call.split()
    assert TOKEN not in call + programs.script
    for node in gang.nodes:
        launch = Path(node.work_dir) / "launch.json"
        assert TOKEN in launch.read_text()
        assert (launch.stat().st_mode & 0o777, launch.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_options_of_a_single_job_replace_those_of_the_cluster(programs, reopen, gang):
    engine = reopen(partition="main", account="vision", extra_args=["--constraint=old", "--mem-per-cpu=4G"])
    own = {"partition": "long", "qos": "high", "constraint": "a100&nvlink", "reservation": "demo", "chdir": "/etc"}
    engine.start(replace(gang, options=own))
    words = shlex.split(programs.calls[0])
    wanted = {"--partition=long", "--account=vision", "--qos=high", "--constraint=a100&nvlink", "--reservation=demo"}
    assert wanted | {"--mem-per-cpu=4G"} <= set(words)
    assert not {"--partition=main", "--constraint=old", "--chdir=/etc"} & set(words)


def test_gpus_are_asked_for_per_task_with_their_share_of_the_cores(programs, reopen, gang):
    programs.hosts("c2|127.0.0.1|main*|16|gpu:4|mixed|none", "c3|127.0.0.1|main*|10|gpu:4|mixed|none")
    for node in gang.nodes:
        node.slot_kind, node.slots = "cuda", [0, 1]
    engine = reopen()
    engine.start(gang)
    assert {"--gpus-per-task=2", "--cpus-per-task=4"} <= set(programs.calls[0].split())
    assert "--gpus-per-task=2" in programs.script


def test_a_model_that_slurm_names_is_asked_for_by_its_type_and_known_to_the_queue(programs, reopen, gang):
    programs.hosts("c2|127.0.0.1|main*|16|gpu:a100:4|mixed|none", "c3|127.0.0.1|main*|16|gpu:h100:4|mixed|none")
    engine = reopen()
    assert [[device.model for device in m.inventory] for m in engine.capacity()] == [["a100"] * 4, ["h100"] * 4]
    for node in gang.nodes:
        node.slot_kind, node.slots, node.machine = "cuda", [0, 1], "hpc:c3"
    engine.start(gang)
    assert "--gpus-per-task=h100:2" in programs.calls[0].split() and "--gpus-per-task=h100:2" in programs.script
    states = split_machines(engine.capacity(), {}).states
    wish = QueuedJob(job_id="j", priority=0, order=(0.0, "j"), min_nodes=1, max_nodes=1, accels=2, gpu="H100")
    [(_, [node])] = decide(QueueState(now=0.0, machines=states, queue=[wish])).starts
    assert node.machine == "hpc:c3"


def test_agents_are_told_a_minute_before_slurm_s_time_limit_unless_the_site_says_otherwise(programs, reopen, gang):
    reopen().start(gang)
    assert "--signal=TERM@60" in programs.calls[0].split() and "--nodes=2" not in programs.calls[0].split()
    engine = reopen(extra_args=["--signal=TERM@300"], distinct_hosts=True)
    words = engine.plan(gang)[0].argv
    assert [word for word in words if word.startswith("--signal")] == ["--signal=TERM@300"]
    assert {"--ntasks=2", "--nodes=2", "--ntasks-per-node=1"} <= set(words)


def test_squeue_is_asked_seldom_and_the_end_of_an_agent_is_noticed_at_once_nevertheless(programs, reopen, gang):
    engine = reopen(squeue_every_s=100)
    engine.start(gang)
    asked = programs.squeue_calls
    (Path(gang.nodes[1].work_dir) / "gone").touch()
    eventually(lambda: engine.status(gang.attempt_id, 1) is AgentState.GONE)
    for _ in range(50):
        engine.status(gang.attempt_id, 0)
        engine.waits(gang.attempt_id)
    assert programs.squeue_calls == asked <= 1
    engine.cancel(gang.attempt_id)
    assert programs.squeue_calls > asked, "the end of what we cancel is looked at"


def test_excluded_machines_are_excluded_where_slurm_chooses(programs, reopen, gang):
    gang.nodes[0].machine = "hpc:c3"
    programs.hosts(*(f"c{n}|127.0.0.1|main*|4|(null)|idle|none" for n in (1, 2, 3)))
    reopen().start(replace(gang, exclude=("hpc:c1", "local", "other:c2", "hpc:c2", "hpc:c3", "hpc:left")))
    assert "--exclude=c1,c2" in programs.calls[0].split()


def test_what_waits_in_slurm_s_queue_waits_and_says_why(programs, reopen, gang):
    engine = reopen()
    engine.start(gang)
    assert [engine.status(gang.attempt_id, n) for n in (0, 1, 2)] == [AgentState.WAITING] * 2 + [AgentState.UNKNOWN]
    again = reopen()
    assert "Resources (all suitable resources are in use)" in again.waits(gang.attempt_id)
    programs.queue("1|shoal-att_test|RUNNING|N/A|None")
    eventually(lambda: again.status(gang.attempt_id, 1) is AgentState.ALIVE)
    assert again.waits(gang.attempt_id) is None


def test_one_agent_may_be_gone_while_the_job_goes_on(programs, reopen, gang):
    engine = reopen()
    engine.start(gang)
    programs.queue("1|shoal-att_test|RUNNING|N/A|None")
    (Path(gang.nodes[1].work_dir) / "gone").touch()
    eventually(lambda: engine.status(gang.attempt_id, 1) is AgentState.GONE)
    assert engine.status(gang.attempt_id, 0) is AgentState.ALIVE


def test_while_slurm_does_not_answer_nothing_is_held_dead_and_nothing_new_starts(programs, reopen, gang):
    engine = reopen()
    engine.start(gang)
    programs.down()
    again = reopen()
    assert again.status(gang.attempt_id, 0) is AgentState.ALIVE
    assert again.capacity() == []
    with pytest.raises(Unreachable, match="cannot reach the controller"):
        engine.start(make_gang(Path(gang.nodes[0].work_dir).parent, "att_other"))
    assert {m.state for m in engine.capacity()} == {"lost"}
    assert engine.status(gang.attempt_id, 0) is AgentState.WAITING
    assert "cannot reach the controller" in engine.probe()[0]


def test_a_refused_job_leaves_nothing_behind(programs, reopen, gang):
    programs.refuse("sbatch: error: Invalid account or account/partition combination specified")
    engine = reopen()
    with pytest.raises(ShoalError, match="Invalid account"):
        engine.start(gang)
    assert not list(Path(gang.nodes[0].work_dir).parent.iterdir())
    assert programs.calls[-1].startswith("scancel --user=")
    assert engine.status(gang.attempt_id, 0) is AgentState.UNKNOWN


def test_a_job_that_waits_is_cancelled_without_a_salvage(programs, reopen, gang):
    engine = reopen()
    engine.start(gang)
    engine.cancel(gang.attempt_id)
    assert engine.status(gang.attempt_id, 0) is AgentState.GONE
    assert engine.adopt() == set()
    assert not (Path(gang.nodes[0].work_dir) / "agent.log").exists()
    engine.clean(gang.attempt_id)
    assert engine.status(gang.attempt_id, 0) is AgentState.UNKNOWN


def test_cleaning_takes_no_name_that_is_more_than_one(programs, reopen, home):
    engine = reopen()
    (home / "nodes" / "att_1.0").mkdir(parents=True)
    for name in ("*", "att_1.0/..", "", "$(true)"):
        with pytest.raises(ShoalError, match="not an attempt id"):
            engine.clean(name)
    assert (home / "nodes" / "att_1.0").exists()


def test_a_check_finds_what_is_wrong(programs, reopen, tmp_path):
    assert reopen().check() == []
    [problem] = reopen(partition="gpu").check()
    assert problem == "Slurm's partition 'gpu' has no node with a slot in it: see sinfo"
    [problem] = reopen(python=str(tmp_path / "no-python")).check()
    assert "no-python" in problem
    programs.srun("problem: a compute node cannot reach this server at http://x: refused\n")
    assert reopen().check() == ["a compute node cannot reach this server at http://x: refused"]
    programs.srun("slurmstepd: error: execve(): /opt/python: No such file or directory\n")
    assert "set an interpreter that they have with --python" in reopen().check()[0]
    programs.srun("srun: error: Unable to allocate resources: Immediate execution impossible\n")
    assert reopen().check() == []
    programs.hosts("c1|127.0.0.1|main*|4|(null)|down|dead", "c2|nowhere.invalid|main*|4|(null)|idle|none")
    dead, nowhere = reopen(url=None).check()
    assert dead == "c1: Slurm says down: dead"
    assert nowhere.startswith("c2: cannot resolve 'nowhere.invalid'")
    programs.down()
    assert "cannot reach the controller" in reopen().check()[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"login": "-oProxyCommand=x"}, "is not user@host"),
        ({"partition": "--wrap=x"}, "is not a valid Slurm name"),
        ({"extra_args": ["--requeue"]}, "--requeue is set by Shoal"),
        ({"extra_args": ["-x"]}, "is not a long option of sbatch"),
        ({"home": "shared"}, "is not an absolute path"),
        ({"url": "10.0.0.4:8000"}, "is not the URL of a server"),
    ],
)
def test_options_that_could_mean_something_else_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        SlurmOptions(**options)


def test_a_login_node_is_asked_by_ssh_with_everything_quoted(tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nprintf "%s\\n" "$@" >"$0.called"\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    site = Site("ada@login.example.org", ssh_dir=tmp_path / "control")
    site.put(str(tmp_path / "a b"), {"att_1.0/launch.json": b"secret"})
    assert (tmp_path / "a b/att_1.0/launch.json").read_bytes() == b"secret"
    called = (tmp_path / "ssh.called").read_text()
    assert "BatchMode=yes" in called
    assert "--\nada@login.example.org" in called
    assert f"UserKnownHostsFile={tmp_path}/control/known_hosts" in called
    assert "secret" not in called
    assert site.run(["echo", "it's $HOME; true"]) == "it's $HOME; true\n"


def test_hosts_elsewhere_reach_us_by_the_way_that_leads_there(programs, home):
    programs.hosts("c1|127.0.0.1|main*|4|(null)|idle|none", "c2|10.0.0.7|main*|4|(null)|idle|none")
    engine = SlurmEngine(
        "hpc", SlurmOptions(), home=str(home), site=Site(), url_for=lambda address: f"http://to-{address}"
    )
    engine.prepare()
    assert {m.name: m.url for m in engine.capacity()} == {"hpc:c1": None, "hpc:c2": "http://to-10.0.0.7"}
    told = SlurmEngine("hpc", SlurmOptions(url="http://10.0.0.1:80"), home=str(home), site=Site())
    told.prepare()
    assert {m.url for m in told.capacity()} == {"http://10.0.0.1:80"}
