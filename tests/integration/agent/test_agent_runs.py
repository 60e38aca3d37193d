"""A node runs its workers as the contract says."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from shoal.core.agents import BeatReply, JoinRequest
from shoal.core.errors import Corrupt
from shoal.testing.agent_gang import Gang
from shoal.testing.patience import patient

SHOW = """
import json, os, sys
keys = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
print(json.dumps({k: os.environ[k] for k in keys}))
print("to stderr", file=sys.stderr)
"""


@pytest.mark.parametrize(("num_nodes", "accels"), [(1, 2), (2, 2)])
def test_every_worker_of_a_gang_knows_its_place(gang: Callable[..., Gang], num_nodes: int, accels: int) -> None:
    job = gang(["train.py"], {"train.py": SHOW}, num_nodes=num_nodes, accels=accels)
    assert job.finish() == [0] * num_nodes
    seen = []
    for node in range(num_nodes):
        last = job.server.last(node)
        assert last is not None and last.final and last.exit_code == 0 and last.reason is None and not last.told
        states = [str(b.state) for _, b in job.server.beats[node]]
        assert states == sorted(states, key=["preparing", "running", "exited"].index) and states[-1] == "exited"
        for rank in range(node * accels, (node + 1) * accels):
            (line,) = job.server.log(node, rank=rank, stream="out")
            assert job.server.log(node, rank=rank, stream="err") == ["to stderr"]
            place = json.loads(line)
            assert (int(place["RANK"]), int(place["GROUP_RANK"])) == (rank, node)
            assert int(place["LOCAL_RANK"]) == rank - node * accels and int(place["WORLD_SIZE"]) == num_nodes * accels
            seen.append((place["MASTER_ADDR"], place["MASTER_PORT"]))
    assert len(set(seen)) == 1 and 20000 <= int(seen[0][1]) <= 32700


def test_no_worker_starts_before_every_node_is_prepared_and_the_port_is_chosen_then(gang: Callable[..., Gang]) -> None:
    job = gang(["train.py"], {"train.py": SHOW}, start=False, num_nodes=2, start_barrier=True)
    job.agents = [job.start_node(0)]
    job.server.joined[1] = JoinRequest(pid=1, boot_id="b", host="h", address="127.0.0.1", port=1)
    job.server.wait(lambda: job.server.prepared == {0} and len(job.server.beats[0]) >= 2)
    assert {str(beat.state) for _, beat in job.server.beats[0]} == {"preparing"}, "node 1 still fetches its data"
    assert job.server.log(0) == []
    taken = job.server.joined[0].port
    with socket.socket() as other:  # somebody takes the port that was free when the node joined
        other.bind(("", taken))
        job.agents.append(job.start_node(1))
        assert job.finish() == [0, 0]
    ports = {json.loads(line)["MASTER_PORT"] for node in (0, 1) for line in job.server.log(node, stream="out")}
    assert ports == {str(job.server.meeting_port)} and str(taken) not in ports


def test_a_node_that_waits_for_its_gang_can_be_stopped(gang: Callable[..., Gang]) -> None:
    job = gang(["train.py"], {"train.py": SHOW}, start=False, num_nodes=2, start_barrier=True)
    job.agents = [job.start_node(0)]
    job.server.joined[1] = JoinRequest(pid=1, boot_id="b", host="h", address="127.0.0.1", port=1)
    job.server.wait(lambda: job.server.prepared)
    job.server.answer = BeatReply(stop=True)
    assert job.finish() == [0]
    last = job.server.last(0)
    assert last is not None and last.told and last.reason == "stopped before it started"


def test_scripts_see_the_variables_of_a_cluster_with_their_own_place(gang: Callable[..., Gang]) -> None:
    show = "import os\nprint(os.environ['SLURM_JOB_ID'], os.environ['SLURM_PROCID'])"
    job = gang(["train.py"], {"train.py": show}, start=False, accels=2)
    job.given = {"env": {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, "place_env": {"SLURM_PROCID": "rank"}}
    assert job.start().finish() == [0]
    assert [job.server.log(rank=rank, stream="out") for rank in (0, 1)] == [["7 0"], ["7 1"]]


def test_one_worker_is_a_plain_process(gang: Callable[..., Gang]) -> None:
    show = "import json, os\nprint(json.dumps(dict(os.environ)))"
    job = gang(["train.py"], {"train.py": show}, env={"TORCHELASTIC_RUN_ID": "of another", "RANK": "3"})
    assert job.finish() == [0]
    (line,) = job.server.log(rank=0, stream="out")
    seen = json.loads(line)
    places = ("RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "USE_DDP")
    assert [name for name in seen if name.startswith(places)] == []
    assert (seen["SHOAL_RANK"], seen["SHOAL_NODE"]) == ("0", "0")


PATHS = """
import json, os, sys
def read(path):
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
def writable(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False
args = sys.argv[1:]
print(json.dumps({
    "args": args,
    "read": [read(a.split("=")[-1]) for a in args],
    "env": {k: os.environ.get(k) for k in ("DATA_LOCATION", "SHOAL_RESUME_FROM", "OUTPUT_DIR", "MINE", "SHOAL_SPOOL")},
    "data": read(os.environ["DATA_LOCATION"] + "/a.txt"),
    "ck": read(os.environ["SHOAL_RESUME_FROM"] + "/model.bin"),
    "mine": read(os.environ["MINE"]),
    "cwd": os.getcwd() == os.path.dirname(os.path.abspath(__file__)),
    "path": sys.path[0] == os.getcwd(),
    "spool": os.path.isdir(os.environ["SHOAL_SPOOL"]),
}))
with open(os.environ["OUTPUT_DIR"] + "/made.txt", "w") as f:
    f.write("by the job")
"""


def test_inputs_and_outputs_are_where_the_contract_says(gang: Callable[..., Gang], sandbox: dict[str, str]) -> None:
    names = ["/input/text/a.txt", "--old=/input/a.txt", "/checkpoint/model.bin", "/netmind_train/datasets/job_1/a.txt"]
    job = gang(["train.py", *names], {"train.py": PATHS}, env=sandbox, start=False)
    job.server.reply.mounts = [
        job.server.mount("/input/text", {"a.txt": "alpha", "sub/b.txt": "beta"}),
        job.server.mount("/input-checkpoint", {"model.bin": "weights"}),
    ]
    job.server.reply.env = {"MINE": "/input/text/sub/b.txt"}
    job.start().finish()
    last = job.server.last()
    assert last is not None and last.exit_code == 0 and last.paths == sandbox["SHOAL_SANDBOX"], job.server.log()
    found = json.loads(job.server.log()[0])
    assert found["read"] == ["alpha", "alpha", "weights", "alpha"]
    assert (found["data"], found["ck"], found["mine"]) == ("alpha", "weights", "beta")
    assert found["cwd"] and found["path"] and found["spool"]
    assert (job.work_dir() / "output-checkpoint/made.txt").read_text() == "by the job"
    if sandbox["SHOAL_SANDBOX"] == "bubblewrap":
        assert found["args"] == names and found["env"]["DATA_LOCATION"] == "/input/text"
    assert not any(Path(p).exists() for p in ("/input", "/output-checkpoint", "/netmind_train"))


def test_the_sandbox_keeps_inputs_read_only_and_hides_what_is_not_the_jobs(
    gang: Callable[..., Gang], sandbox: dict[str, str]
) -> None:
    if sandbox["SHOAL_SANDBOX"] == "rewrite":
        pytest.skip("only a sandbox can")
    script = """
import os, sys
for path, mode in (("/input/text/a.txt", "w"), ("/input/new", "w"), (sys.argv[1], "r")):
    try:
        open(path, mode); print("opened", path)
    except OSError as error:
        print(error.strerror)
print(os.listdir(sys.argv[2]))
print(os.path.exists("/dev/shm"), os.access("/dev/null", os.W_OK), len([p for p in os.listdir("/proc") if p.isdigit()]) < 10)
"""
    job = gang(["t.py"], {"t.py": script}, env=sandbox, start=False)
    job.server.reply.entry += [str(job.work_dir() / "launch.json"), str(job.server.server_file.parent)]
    job.server.reply.mounts = [job.server.mount("/input/text", {"a.txt": "alpha"})]
    job.start().finish()
    assert job.server.log() == [
        "Read-only file system",
        "Read-only file system",
        "Permission denied",
        "[]",
        "True True True",
    ]


def test_of_all_nodes_of_a_machine_a_job_sees_only_its_own(gang: Callable[..., Gang], sandbox: dict[str, str]) -> None:
    if sandbox["SHOAL_SANDBOX"] == "rewrite":
        pytest.skip("only a sandbox can")
    script = """
import os, sys
nodes, own = sys.argv[1:]
print(sorted(os.listdir(nodes)), "t.py" in os.listdir(own + "/source"))
for path in (own + "/launch.json", nodes + "/att_2.0/launch.json", nodes + "/new"):
    try:
        open(path, "w" if path.endswith("new") else "r"); print("opened", path)
    except OSError as error:
        print(type(error).__name__)
open(own + "/tmp/mine", "w")
"""
    job = gang(["t.py"], {"t.py": script}, env=sandbox, start=False)
    other = job.folder / "att_2.0"
    other.mkdir()
    (other / "launch.json").write_text('{"token": "of another"}')
    job.server.reply.entry += [str(job.folder), str(job.work_dir())]
    job.hide = [str(job.folder)]
    job.start().finish()
    assert job.server.log() == ["['node0'] True", "PermissionError", "FileNotFoundError", "OSError"]


def test_data_is_passed_to_a_script_that_takes_it(gang: Callable[..., Gang], sandbox: dict[str, str]) -> None:
    takes = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data')\nprint(open(p.parse_args().data + '/a.txt').read())\n"
    for script, argv, expected in [(takes, [], "alpha"), ("import sys\nprint(sys.argv[1:])", [], "[]")]:
        job = gang(["t.py", *argv], {"t.py": script}, env=sandbox, start=False)
        job.server.reply.mounts = [job.server.mount("/input/text", {"a.txt": "alpha"})]
        job.start().finish()
        assert job.server.log() == [expected]


def test_secrets_reach_the_workers_environment_and_nothing_else(gang: Callable[..., Gang]) -> None:
    script = """
import os, subprocess
print("is", os.environ["WANDB_API_KEY"], len(os.environ["WANDB_API_KEY"]))
print("token" in str(dict(os.environ)), "SHOAL_API_KEY" in os.environ)
print("held", os.environ["WANDB_API_KEY"] in subprocess.run(["ps", "-ww", "axo", "args"], capture_output=True, text=True).stdout)
raise SystemExit("failed with " + os.environ["WANDB_API_KEY"])
"""
    job = gang(["t.py"], {"t.py": script}, secrets={"WANDB_API_KEY": "planted-secret-value"})
    job.finish()
    last = job.server.last()
    assert last is not None and last.exit_code == 1 and last.reason == "exit code 1: failed with ***"
    assert job.server.log(stream="out") == ["is *** 20", "False False", "held False"]
    for path in job.work_dir().rglob("*"):
        if path.is_file():
            assert b"planted-secret-value" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("entry", "files", "expected"),
    [
        (
            ["-m", "pkg.train", "x"],
            {"pkg/__init__.py": "", "pkg/train.py": "import sys; print(sys.argv[1:])"},
            ["['x']"],
        ),
        (["run.sh", "a b"], {"run.sh": 'echo "got $1"; python -c "print(2)"'}, ["got a b", "2"]),
        (["python", "t.py"], {"t.py": "print('hi')"}, ["hi"]),
    ],
)
def test_modules_shell_scripts_and_commands_run_as_they_are(
    gang: Callable[..., Gang], entry: list[str], files: dict[str, str], expected: list[str]
) -> None:
    job = gang(entry, files)
    job.finish()
    assert job.server.log() == expected


def test_a_program_that_is_not_there_is_named(gang: Callable[..., Gang]) -> None:
    job = gang(["no-such-program"], {"t.py": ""})
    job.finish()
    last = job.server.last()
    assert (
        last is not None
        and last.exit_code == 127
        and last.reason == "cannot run no-such-program: No such file or directory"
    )


def test_two_agents_never_run_one_node(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": "import time; print('up'); time.sleep(60)"})
    job.server.wait(lambda: job.server.log())
    second = job.start_node(0)
    assert second.wait(patient(30)) == 3
    job.agents[0].terminate()
    assert job.finish() == [0]


def test_an_agent_the_server_does_not_want_leaves(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": "print(1)"}, start=False)
    path = job.launch_file(0)
    path.write_text(path.read_text().replace("token-0", "stranger"))
    done = subprocess.run(["python", "-m", "shoal.agent", str(path)], timeout=patient(30), check=False)
    assert done.returncode == 4
    assert "join refused: forbidden" in (job.work_dir() / "agent.log").read_text()
    known = json.loads((job.work_dir() / "result.json").read_text())
    assert known["reason"].startswith("its agent could not join the server: ") and not known.get("delivered")


def test_an_agent_whose_join_is_refused_says_why(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": "print(1)"}, start=False)
    job.server.refusal = Corrupt("The secret 'wandb' cannot be decrypted.")
    agent = job.start_node(0)
    last = job.server.wait_final()
    assert agent.wait(patient(30)) == 4
    assert (last.exit_code, last.told) == (1, False)
    assert last.reason == "its agent could not join the server: The secret 'wandb' cannot be decrypted."


def test_progress_and_system_samples_are_reported(gang: Callable[..., Gang]) -> None:
    script = "import time\nfor n in range(1, 71):\n    print(f'step {n}/70', flush=True)\n    time.sleep(0.1)\n"
    job = gang(["t.py"], {"t.py": script})
    job.finish()
    seen = [b.progress for _, b in job.server.beats[0] if b.progress]
    assert len({p.step for p in seen}) >= 3 and seen[-1].step == seen[-1].total == 70
    assert any(p.eta_s and 0 < p.eta_s < 60 for p in seen)
    surroundings, sample, *_ = job.server.records[(0, "system")]
    assert surroundings["env"]["python"] and surroundings["env"]["packages"]
    assert sample["rss"] > 1 << 20 and sample["procs"] >= 2 and sample["ram_total"] > sample["ram"]


def test_the_first_line_arrives_soon_and_beats_come_every_second(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": "import time; print(time.time(), flush=True); time.sleep(3.3)"})
    job.server.wait(lambda: job.server.log())
    assert time.time() - float(job.server.log()[0]) < patient(1)
    job.finish()
    times = [at for at, _ in job.server.beats[0]]
    assert max(b - a for a, b in pairwise(times)) < patient(2)


@pytest.mark.parametrize("end", ["exit(1)", "raise SystemExit(1)"])
def test_a_script_that_exits_with_an_error_is_recorded_as_failed_and_not_as_complete(
    gang: Callable[..., Gang], end: str
) -> None:
    job = gang(["t.py"], {"t.py": f"import shoal\nrun = shoal.init(max_steps=4)\nrun.step(loss=1.0)\n{end}\n"})
    assert job.finish() == [0]
    last = job.server.last()
    assert last is not None and last.exit_code == 1
    assert last.progress is not None and (last.progress.step, last.progress.fraction) == (1, 0.25)
    ends = [r["status"] for r in job.server.records[0, "metric"] if r["k"] == "f"]
    assert ends[-1] == "failed"


ALONE = """
import shoal.testing.light_torch
import os, torch
if "together" in os.sys.argv:
    torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model(torch.ones(1)).sum().backward()
    optimizer.step()
print("done")
if "together" in os.sys.argv:
    torch.distributed.destroy_process_group()
"""


def test_workers_that_each_train_a_model_of_their_own_are_warned_of(gang: Callable[..., Gang]) -> None:
    found = {}
    for mode in ("alone", "together"):
        job = gang(["t.py", mode], {"t.py": ALONE}, accels=2)
        assert job.finish() == [0]
        found[mode] = [line for line in job.server.log() if "every rank trains alone" in line]
    assert len(found["alone"]) == 1 and found["alone"][0].startswith("[shoal] warning: world size 2")
    assert found["together"] == []
