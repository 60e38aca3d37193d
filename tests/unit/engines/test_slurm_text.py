"""Parsing of the output of Slurm's programs, version 22.05 and later."""

import subprocess
from pathlib import Path

import pytest

from shoal.agent.wire import JoinReply, Launch
from shoal.agent.workers import runtime
from shoal.engines.slurm import text
from shoal.engines.slurm.step import placed

SINFO = """\
c1|10.0.0.1|main*|8|(null)|idle|none
c1|10.0.0.1|big|8|(null)|idle|none
c2|10.0.0.1|main*|8|gpu:a100:4(S:0-1),shard:8|mixed|none
c3|10.0.0.1|main*|8|gpu:2|drained|Kernel upgrade | tonight
c4|10.0.0.1|main*|16+|(null)|idle*|Not responding
c5|10.0.0.1|main*|4|(null)|idle~|none
c6|10.0.0.1|main*|4|gpu:tesla:1,gpu:k80:2|allocated|none
c7|10.0.0.1|big|4|(null)|down|none
nonsense
"""


def test_hosts_of_the_default_partition_are_those_with_a_star():
    hosts = {h.name: h for h in text.read_hosts(SINFO, None)}
    assert list(hosts) == ["c1", "c2", "c3", "c4", "c5", "c6"]
    assert [(h.cpus, h.gpus) for h in hosts.values()] == [(8, 0), (8, 4), (8, 2), (16, 0), (4, 0), (4, 3)]
    assert [h.state for h in hosts.values()] == ["up", "up", "draining", "lost", "up", "up"]
    assert hosts["c3"].problem == "Slurm says drained: Kernel upgrade | tonight"
    assert hosts["c1"].problem is None
    assert [hosts[name].types for name in ("c2", "c3", "c6")] == [("a100",) * 4, ("", ""), ("tesla", "k80", "k80")]


def test_hosts_of_a_named_partition_are_no_others():
    assert [(h.name, h.state) for h in text.read_hosts(SINFO, "big")] == [("c1", "up"), ("c7", "lost")]
    assert text.read_hosts(SINFO, "none") == []


def test_only_our_own_jobs_are_read_from_the_queue():
    queue = text.read_queue(
        "7|shoal-att_1|PENDING|2026-01-31T12:00:00|Resources\n8|somebody's|RUNNING|N/A|None\n9|shoal-att_2|RUNNING|2026|None\nbroken\n"
    )
    assert {k: (j.job_id, j.waits) for k, j in queue.items()} == {"att_1": ("7", True), "att_2": ("9", False)}
    assert queue["att_1"].why == (
        "it waits in Slurm's queue as job 7: Resources (all suitable resources are in use); "
        "Slurm expects to start it at 2026-01-31T12:00:00"
    )


def test_a_reason_nobody_knows_is_told_as_it_is():
    [job] = text.read_queue("7|shoal-att_1|PENDING|N/A|SomethingNew").values()
    assert job.why == "it waits in Slurm's queue as job 7: SomethingNew"


@pytest.mark.parametrize(
    ("said", "version"), [("slurm-wlm 22.05.8", (22, 5)), ("slurm 24.11.1", (24, 11)), ("?", None)]
)
def test_versions(said, version):
    assert text.read_version(said) == version


def test_the_batch_script_outlives_a_sigterm_and_ends_with_its_step(tmp_path):
    step = ["sh", "-c", 'sleep 30 & trap "echo asked; kill $!; exit 0" TERM; echo up; wait', "a b"]
    script = tmp_path / "job.sh"
    script.write_text(text.batch_script(step, {"SHOWN": "it's"}) + 'echo "after $SHOWN"\n')
    with subprocess.Popen(["sh", script], stdout=subprocess.PIPE, text=True, start_new_session=True) as job:
        assert job.stdout.readline() == "up\n"
        job.terminate()
        child = next(iter(_children(job.pid)))
        assert job.poll() is None
        subprocess.run(["kill", "-TERM", str(child)], check=True)
        assert job.stdout.read() == "asked\nafter it's\n"


def _children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


LAUNCH = {"machine": "slurm:c1", "slots": [0, 1], "slot_kind": "cpu", "cpu_threads": 1, "token": "t"}


def test_a_task_tells_its_agent_where_it_has_come_to_be():
    found = placed(LAUNCH, "hpc", {"SLURMD_NODENAME": "c2", "SLURM_CPUS_PER_TASK": "8"})
    assert {k: found[k] for k in LAUNCH} == LAUNCH | {"machine": "hpc:c2", "slots": [0, 1], "cpu_threads": 4}
    assert found["devices"] == []


def test_scripts_see_slurms_variables_with_their_own_place_and_no_credential():
    env = {"SLURM_JOB_ID": "7", "SLURM_TMPDIR": "/local/7", "SLURM_PROCID": "1", "SLURM_JWT": "secret", "HOME": "/root"}
    launch = Launch(placed(LAUNCH | {"node": 1}, "hpc", env))
    assert launch.env == {"SLURM_JOB_ID": "7", "SLURM_TMPDIR": "/local/7", "SLURM_PROCID": "1"}
    join = JoinReply({"ready": True, "num_nodes": 2, "accels": 2})
    place = runtime.place_env(launch, join, 1)
    assert (place["SLURM_PROCID"], place["SLURM_LOCALID"], place["SLURM_NODEID"]) == ("3", "1", "1")
    assert (place["SLURM_NTASKS"], place["SLURM_NTASKS_PER_NODE"], place["SLURM_NNODES"]) == ("4", "2", "2")


@pytest.mark.parametrize(
    ("kind", "env", "slots", "devices"),
    [
        ("cuda", {"CUDA_VISIBLE_DEVICES": "2,3"}, [2, 3], ["2", "3"]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, [0, 1], ["GPU-a", "GPU-b"]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, [0, 1], ["MIG-a", "MIG-b"]),
        ("rocm", {"ROCR_VISIBLE_DEVICES": "2,3"}, [0, 1], ["2", "3"]),
        ("xpu", {"ZE_AFFINITY_MASK": "1,3"}, [1, 3], ["1", "3"]),
        ("xpu", {}, [0, 1], []),
    ],
)
def test_a_task_uses_the_accelerators_slurm_gives_it(kind, env, slots, devices):
    found = placed(LAUNCH | {"slot_kind": kind}, "slurm", env)
    assert (found["slots"], found["devices"]) == (slots, devices)


DF = """\
Filesystem     1024-blocks      Used Available Capacity Mounted on
nas:/home dir    263174212 249000000     %d      95%% /home/with space
"""


def test_a_shared_file_system_without_room_is_named_and_unknown_output_is_no_reason():
    assert text.read_full(DF % 3200) == "out of disk space (3 MiB free)"
    assert [text.read_full(found) for found in (DF % (16 << 10), DF % 10**9, "", "df: not found")] == [""] * 4
