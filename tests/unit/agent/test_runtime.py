"""The contract every script is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.agent.devices.binding import RESERVED
from shoal.agent.node.interfaces import network_cards
from shoal.agent.wire import JoinReply, Launch
from shoal.agent.workers import runtime

LAUNCH = Launch(
    {
        "job_id": "job_1",
        "job_name": "story",
        "attempt_id": "att_1",
        "attempt": 2,
        "node": 1,
        "token": "secret-token",
        "url": "http://127.0.0.1:1",
        "work_dir": "/w",
        "cache_dir": "/c",
        "python": "/rt/bin/python",
        "machine": "local",
        "slots": [4, 6],
        "slot_kind": "cuda",
        "cpu_threads": 3,
    }
)
GANG = JoinReply({"ready": True, "num_nodes": 2, "accels": 2, "master_addr": "10.0.0.1", "master_port": 23456})
ALONE = JoinReply({"ready": True, "num_nodes": 1, "accels": 1, "master_addr": "127.0.0.1", "master_port": 23456})
PATHS = runtime.Paths("/input/text", "/output-checkpoint", "/input-checkpoint", "/w/spool/sdk")


def test_a_worker_gets_all_that_torchrun_would_set() -> None:
    env = runtime.rank_env(LAUNCH, GANG, 1, "/w/tmp/error.json")
    assert env == {
        "SHOAL_RANK": "3",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "23456",
        "TORCHELASTIC_RUN_ID": "att_1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_ERROR_FILE": "/w/tmp/error.json",
    }


def test_a_single_worker_is_a_plain_process() -> None:
    assert runtime.is_plain(ALONE, "import torch")
    assert runtime.rank_env(LAUNCH, ALONE, 0, "/e", plain=True) == {"SHOAL_RANK": "1"}


def test_a_single_worker_of_a_job_that_may_have_more_is_told_its_rank() -> None:
    elastic = JoinReply({"ready": True, "num_nodes": 1, "accels": 1, "is_distributed": True})
    assert not runtime.is_plain(elastic, "")
    assert not runtime.is_plain(GANG, "")


@pytest.mark.parametrize("line", ["from NetmindMixins.Netmind import nmp", "    import NetmindMixins.Netmind as nm"])
def test_a_script_for_netmind_is_told_its_rank_as_there(line: str) -> None:
    assert not runtime.is_plain(ALONE, f"import os\n{line}\nos.environ['LOCAL_RANK']\n")
    assert runtime.is_plain(ALONE, "# runs without NetmindMixins, too\n")


def test_ranks_of_whoever_started_the_agent_are_not_those_of_its_workers() -> None:
    assert runtime.base_env({"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "TORCH_HOME": "/t"}) == {"TORCH_HOME": "/t"}


def test_the_names_of_the_older_systems_are_there() -> None:
    env = runtime.node_env(LAUNCH, GANG, PATHS)
    assert env["DATA_LOCATION"] == "/input/text"
    assert env["OUTPUT_DIR"] == env["FLEXAI_OUTPUT_CHECKPOINT_DIR"] == "/output-checkpoint"
    assert env["SHOAL_RESUME_FROM"] == env["FLEXAI_INPUT_CHECKPOINT_DIR"] == "/input-checkpoint"
    assert env["JOBID"] == env["RUN_ID"] == env["SHOAL_JOB_ID"] == "job_1"
    assert "ACCELERATE_USE_CPU" not in env
    assert (env["USE_DDP"], env["PLATFORM"], env["SHOAL_ATTEMPT"]) == ("1", "pytorch", "2")
    assert (env["CUDA_VISIBLE_DEVICES"], env["OMP_NUM_THREADS"], env["PYTHONUNBUFFERED"]) == ("4,6", "3", "1")
    assert (env["SHOAL_ATTEMPT_ID"], env["SHOAL_NODE"], env["SHOAL_SPOOL"]) == ("att_1", "1", "/w/spool/sdk")


def test_workers_on_cpu_slots_are_told_to_work_together() -> None:
    launch = Launch({**LAUNCH.__dict__, "slot_kind": "cpu"})
    assert runtime.node_env(launch, GANG, PATHS)["ACCELERATE_USE_CPU"] == "true"
    assert "ACCELERATE_USE_CPU" not in runtime.node_env(launch, ALONE, PATHS)


@pytest.mark.parametrize(
    ("kind", "names", "expected"),
    [
        ("cuda", ["GPU-a", "MIG-b"], {"CUDA_VISIBLE_DEVICES": "GPU-a,MIG-b", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ("cuda", [], {"CUDA_VISIBLE_DEVICES": "4,6", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ("rocm", ["GPU-a", "GPU-b"], {"ROCR_VISIBLE_DEVICES": "GPU-a,GPU-b", "HIP_VISIBLE_DEVICES": "0,1"}),
        ("rocm", [], {"HIP_VISIBLE_DEVICES": "4,6"}),
        ("xpu", ["4", "6"], {"ZE_AFFINITY_MASK": "4,6"}),
        ("cpu", [], {}),
    ],
)
def test_workers_see_the_devices_of_their_node_and_no_others(kind, names, expected) -> None:
    launch = Launch({**LAUNCH.__dict__, "slot_kind": kind, "devices": names})
    env = runtime.node_env(launch, GANG, PATHS)
    assert {k: v for k, v in env.items() if k in RESERVED} == expected
    theirs = dict.fromkeys(RESERVED, "0,1,2,3,4,5,6,7") | {"LR": "1"}
    merged = runtime.merge({"CUDA_VISIBLE_DEVICES": "9"}, env, theirs, {}, lambda text: text)
    assert {k: merged[k] for k in expected} == expected
    assert merged["LR"] == "1"


@pytest.mark.parametrize(
    ("kind", "names", "expected"),
    [
        ("cuda", ["GPU-a", "MIG-b"], {"CUDA_VISIBLE_DEVICES": "MIG-b", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ("cuda", [], {"CUDA_VISIBLE_DEVICES": "6", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ("rocm", ["GPU-a", "GPU-b"], {"ROCR_VISIBLE_DEVICES": "GPU-b", "HIP_VISIBLE_DEVICES": "0"}),
        ("xpu", ["4", "6"], {"ZE_AFFINITY_MASK": "6"}),
        ("cpu", [], {}),
    ],
)
def test_a_worker_can_be_given_its_own_device_as_the_only_one(kind, names, expected) -> None:
    launch = Launch({**LAUNCH.__dict__, "slot_kind": kind, "devices": names})
    each = JoinReply({**GANG.__dict__, "one_device_per_worker": True, "mounts": [], "neighbours": {}})
    assert runtime.own_device_env(launch, each, 1, "") == expected
    assert runtime.own_device_env(launch, GANG, 1, "import torch; torch.device('cuda:0')") == {}


def test_scripts_for_netmind_that_name_cuda_0_get_their_own_device_unasked() -> None:
    launch = Launch({**LAUNCH.__dict__, "devices": ["GPU-a", "GPU-b"]})
    script = "from NetmindMixins.Netmind import nmp\ndevice = torch.device('cuda:0')\n"
    assert runtime.own_device_env(launch, GANG, 1, script)["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    for by_rank in ("torch.device('cuda', local_rank)", "args = TrainingArguments('out')"):
        assert runtime.own_device_env(launch, GANG, 1, script + by_rank) == {}


def test_variables_of_a_cluster_tell_a_worker_its_own_place() -> None:
    launch = Launch(
        {**LAUNCH.__dict__, "place_env": {"PROC": "rank", "LOCAL": "local_rank", "TASKS": "world_size", "N": "new"}}
    )
    rank = runtime.rank_env(launch, GANG, 1, "")
    place = runtime.place_env(launch, GANG, 1)
    assert place == {"PROC": rank["RANK"], "LOCAL": rank["LOCAL_RANK"], "TASKS": "4"} and rank["RANK"] == "3"
    assert runtime.place_env(LAUNCH, GANG, 1) == {}


@pytest.mark.parametrize("kind", ["cuda", "rocm", "xpu"])
def test_workers_on_an_accelerator_are_told_what_they_were_promised(kind: str) -> None:
    launch = Launch({**LAUNCH.__dict__, "slot_kind": kind})
    env = runtime.node_env(launch, GANG, PATHS)
    assert env["SHOAL_DEVICE"] == kind and "SHOAL_ALLOW_CPU" not in env
    allowed = JoinReply({**GANG.__dict__, "allow_cpu": True, "mounts": [], "neighbours": {}})
    assert runtime.node_env(launch, allowed, PATHS)["SHOAL_ALLOW_CPU"] == "1"


def test_nothing_is_promised_on_a_cpu_slot_nor_to_people_in_a_session() -> None:
    cpu = Launch({**LAUNCH.__dict__, "slot_kind": "cpu"})
    assert "SHOAL_DEVICE" not in runtime.node_env(cpu, GANG, PATHS)
    for session in ({"entry": ["-m", "shoal.agent.workers.interactive"]}, {"lease": {"id": "lease_1"}}):
        assert "SHOAL_DEVICE" not in runtime.node_env(LAUNCH, JoinReply({"ready": True, **session}), PATHS)


def test_what_is_not_mounted_is_not_named() -> None:
    env = runtime.node_env(LAUNCH, ALONE, runtime.Paths(None, "/output-checkpoint", None, "/s"))
    assert not env.keys() & {"DATA_LOCATION", "SHOAL_RESUME_FROM", "FLEXAI_INPUT_CHECKPOINT_DIR", "USE_DDP"}


def test_of_the_machine_only_what_is_useful_and_harmless_is_passed_on() -> None:
    host = {
        "PATH": "/bin",
        "HOME": "/root",
        "https_proxy": "http://p",
        "PIP_INDEX_URL": "http://i",
        "NCCL_DEBUG": "INFO",
        "HF_HOME": "/hf",
        "TORCH_HOME": "/t",
        "TOKENIZERS_PARALLELISM": "0",
        "HF_TOKEN": "x",
        "SHOAL_API_KEY": "x",
        "SHOAL_HOME": "/x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "PYTHONPATH": "/x",
        "DISPLAY": ":0",
        "SCRATCH": "/scratch/ada",
    }
    kept = runtime.base_env(host)
    assert kept.keys() == {
        *(
            "PATH",
            "HOME",
            "https_proxy",
            "PIP_INDEX_URL",
            "NCCL_DEBUG",
            "HF_HOME",
            "TORCH_HOME",
            "TOKENIZERS_PARALLELISM",
            "SCRATCH",
        )
    }


def test_the_programs_of_the_interpreter_come_first_on_the_path() -> None:
    env = runtime.host_env({"PATH": "/usr/bin:/rt/bin"}, "/env/bin/python", "/rt/bin/python")
    assert env["PATH"] == "/env/bin:/rt/bin:/usr/bin" and env["VIRTUAL_ENV"] == "/env"
    assert "VIRTUAL_ENV" not in runtime.host_env({}, "/rt/bin/python", "/rt/bin/python")


def test_the_user_wins_over_the_machine_but_not_over_ranks() -> None:
    env = runtime.merge(
        {"A": "host", "B": "host"},
        {"OMP_NUM_THREADS": "1"},
        {"A": "/input", "OMP_NUM_THREADS": "7", "RANK": "9"},
        {"RANK": "0"},
        str.upper,
    )
    assert env == {"A": "/INPUT", "B": "host", "OMP_NUM_THREADS": "7", "RANK": "0"}


@pytest.mark.parametrize(
    ("entry", "argv", "per_rank", "script"),
    [
        (["train.py", "--lr", "1"], ["PY", "-u", "train.py", "--lr", "1"], True, "train.py"),
        (["python", "train.py"], ["PY", "-u", "train.py"], True, "train.py"),
        (["python3.11", "-X", "dev", "train.py"], ["PY", "-u", "-X", "dev", "train.py"], True, None),
        (["-m", "pkg.train", "a"], ["PY", "-u", "-m", "pkg.train", "a"], True, None),
        (["python", "-m", "torch.distributed.run", "t.py"], ["PY", "-u", "-m", "torch.distributed.run", "t.py"], False, None),
        (["torchrun", "--nproc_per_node", "2", "t.py"], ["PY", "-u", "-m", "torch.distributed.run", "--nproc_per_node", "2", "t.py"], False, None),
        (["accelerate", "launch", "t.py"], ["PY", "-u", "-m", "accelerate.commands.accelerate_cli", "launch", "t.py"], False, None),
        (["run.sh", "a"], ["bash", "run.sh", "a"], False, None),
        (["bash", "-c", "true"], ["bash", "-c", "true"], False, None),
    ],
)  # fmt: skip
def test_entries_run_as_they_are_meant(
    entry: list[str], argv: list[str], per_rank: bool, script: str | None, tmp_path: Path
) -> None:
    found = runtime.command(entry, "PY", tmp_path)
    assert (found.argv, found.per_rank) == (argv, per_rank)
    if script:
        assert found.script == script


def test_a_script_without_a_suffix_runs_by_python_unless_it_is_executable(tmp_path: Path) -> None:
    file = tmp_path / "train"
    file.write_text("print(1)")
    assert runtime.command(["train"], "PY", tmp_path).argv == ["PY", "-u", "train"]
    file.chmod(0o755)
    assert runtime.command(["train"], "PY", tmp_path).argv == [str(file)]


def test_nodes_of_one_machine_meet_on_loopback() -> None:
    local = JoinReply({"ready": True, "num_nodes": 2, "accels": 1, "master_addr": "127.0.0.1"})
    assert runtime.network_env(local, {}) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert runtime.network_env(local, {"GLOO_SOCKET_IFNAME": "eth0"}) == {}
    assert runtime.network_env(ALONE, {}) == runtime.network_env(GANG, {}, lambda _: None) == {}


def test_network_cards_are_interfaces_of_hardware_that_are_up(tmp_path: Path) -> None:
    for name, state, is_card in (
        ("eth0", "up", True),
        ("eth1", "down", True),
        ("docker0", "up", False),
        ("ib0", "up", True),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "operstate").write_text(f"{state}\n")
        if is_card:
            (tmp_path / name / "device").mkdir()
    assert network_cards(tmp_path) == ["eth0", "ib0"] and network_cards(tmp_path / "none") == []


def test_lightning_is_told_of_all_workers_of_a_gang() -> None:
    env = runtime.node_env(LAUNCH, GANG, PATHS)
    assert {env["PL_TRAINER_DEVICES"], env["PL_TRAINER_NUM_NODES"], env["LT_DEVICES"], env["LT_NUM_NODES"]} == {"2"}
    assert not any(name.startswith(("PL_", "LT_")) for name in runtime.node_env(LAUNCH, ALONE, PATHS))


def test_torchrun_gets_the_gang_and_no_restarts() -> None:
    argv = runtime.torchrun(LAUNCH, GANG, "PY", ["w"])
    assert (
        "--max-restarts=0" in argv and "--nnodes=2" in argv and "--node-rank=1" in argv and "--nproc-per-node=2" in argv
    )
    assert argv[-1] == "w"


def test_nothing_of_the_contract_holds_the_agents_token() -> None:
    everything = {
        **runtime.node_env(LAUNCH, GANG, PATHS),
        **runtime.rank_env(LAUNCH, GANG, 0, "/e"),
        **runtime.launcher_env(LAUNCH, GANG),
    }
    assert "secret-token" not in str(everything)


def test_workers_on_several_machines_meet_on_the_interface_that_leads_to_the_first() -> None:
    gloo = {"GLOO_SOCKET_IFNAME": "eth7"}
    both, way = gloo | {"NCCL_SOCKET_IFNAME": "eth7"}, {GANG.master_addr: "eth7"}.get
    assert runtime.network_env(GANG, {}, way, lambda: ["eth7"]) == both
    assert runtime.network_env(GANG, {}, way, list) == both, "in a container no interface is hardware"
    assert runtime.network_env(GANG, {}, way, lambda: ["eth7", "ib0"]) == gloo, "NCCL chooses the fastest of several"
    assert runtime.network_env(GANG, {"NCCL_SOCKET_IFNAME": "ib0"}, way, lambda: ["eth7"]) == gloo, (
        "the machine's own counts"
    )
    assert runtime.network_env(GANG, {"GLOO_SOCKET_IFNAME": "ib0"}, lambda _: "eth7") == {}
