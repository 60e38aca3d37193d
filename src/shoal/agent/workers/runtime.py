"""The runtime contract: the command line and environment of a worker. Pure except for reading the entry script."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from shoal.agent.devices.binding import RESERVED, binding_env
from shoal.agent.node.interfaces import interface_to, network_cards
from shoal.agent.wire import JoinReply, Launch
from shoal.core import start_seed
from shoal.core.device_check import ALLOW_CPU, DEVICE, EMULATE_CUDA, promised

_KEPT = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TERM TMPDIR TEMP TMP LD_LIBRARY_PATH LD_PRELOAD SSL_CERT_FILE SSL_CERT_DIR "
    "REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY CPATH LIBRARY_PATH CC CXX "
    # Folders of computing centres: fast disks and project space.
    "SCRATCH SCRATCHDIR SCRATCH_DIR LOCAL_SCRATCH LOCALSCRATCH GSCRATCH PSCRATCH CSCRATCH CINECA_SCRATCH WORK PROJECT STORE "
    "JOB_TMPDIR JOBFS".split()
)
_KEPT_PREFIXES = (
    "LC_ PIP_ UV_ CUDA NVIDIA_ NCCL_ GLOO_ UCX_ FI_ ROCM HIP_ ROCR_ HSA_ OMP_ MKL_ KMP_ GOMP_ OPENBLAS_ HF_ HUGGINGFACE_ TRANSFORMERS_ "
    "DATASETS_ TORCH PYTORCH_ TRITON_ XDG_ MALLOC_ TOKENIZERS_"
).split()
_CREDENTIAL_NAME = re.compile(r"TOKEN(?!IZERS)|SECRET|PASSWORD|_KEY|CREDENTIAL", re.IGNORECASE)
RANK = "SHOAL_RANK"
"""Variable with the rank of a worker that the agent started; set even when RANK is not."""
_FOR_NETMIND = re.compile(r"^\s*(?:from|import)\s+NetmindMixins\b", re.MULTILINE)
_BY_RANK = re.compile(r"local_rank|\bTrainingArguments\b|\bAccelerator\(", re.IGNORECASE)
"""Found in scripts that choose a device by their rank, themselves or through a library; they need to see all of them."""
STARTUP = Path(__file__).parents[2] / "sdk" / "emulate" / "startup"
"""Folder with a sitecustomize module.

On PYTHONPATH it runs in every Python process of the job, also below launchers and loaders.
"""
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_SESSION_MODULES = ("shoal.agent.lease.ssh_server", "shoal.agent.workers.interactive")
"""Entries of jobs in which people work interactively. One process per node is started, as for a launcher."""


def is_session(entry: list[str]) -> bool:
    """Return whether people work interactively in this job instead of a script."""
    return any(module in entry for module in _SESSION_MODULES)


class Command(NamedTuple):
    """Command line of a job's entry."""

    argv: list[str]
    per_rank: bool
    """True: one process per slot. False: one per node, which starts its own workers."""
    script: str | None = None
    """The Python file to run, relative to the source root; None if the entry is not a Python file."""


def base_env(host: Mapping[str, str]) -> dict[str, str]:
    """Return the machine's variables that a job may see (paths, proxies, drivers), without credentials and SHOAL_*."""
    return {
        k: v
        for k, v in host.items()
        if (k.upper() in _KEPT or k.startswith(tuple(_KEPT_PREFIXES)))
        and not _CREDENTIAL_NAME.search(k)
        and not k.startswith(("SHOAL_", "TORCHELASTIC_"))
    }


def host_env(host: Mapping[str, str], python: str, runtime_python: str) -> dict[str, str]:
    """Return the base environment with the programs of the job's interpreter first on PATH."""
    env = base_env(host)
    folders = dict.fromkeys(
        [str(Path(python).parent), str(Path(runtime_python).parent), *env.get("PATH", "/usr/bin:/bin").split(":")]
    )
    env["PATH"] = ":".join(folders)
    if python != runtime_python:
        env["VIRTUAL_ENV"] = str(Path(python).parent.parent)
    return env


def marks(launch: Launch) -> dict[str, str]:
    """Return the variables that mark a node's processes, so that recovery finds those a dead agent left running."""
    return {"SHOAL_ATTEMPT_ID": launch.attempt_id, "SHOAL_NODE": str(launch.node)}


def command(entry: list[str], python: str, source: Path) -> Command:
    """Return how to run an entry: scripts and modules with the job's interpreter, other programs as they are."""
    head, rest = entry[0], entry[1:]
    if re.fullmatch(r"python[\d.]*", head) and rest:
        return _python(rest, python)
    if head.startswith("-m"):
        return _python(entry, python)
    if head == "torchrun":
        return Command([python, "-u", "-m", "torch.distributed.run", *rest], per_rank=False)
    if head == "accelerate":
        return Command([python, "-u", "-m", "accelerate.commands.accelerate_cli", *rest], per_rank=False)
    if head in _LAUNCHERS:
        return Command(entry, per_rank=False)
    if head.endswith(".sh"):
        return Command(["bash", *entry], per_rank=False)
    file = source / head
    if head.endswith(".py") or (file.is_file() and not file.stat().st_mode & 0o111):
        return _python(entry, python)
    return Command([str(file), *rest] if file.is_file() else entry, per_rank=False)


def _python(args: list[str], python: str) -> Command:
    at = next((i for i, a in enumerate(args) if not a.startswith("-") or a in ("-m", "-c")), 0)
    if args[at] in ("-m", "-c"):
        module = args[at + 1] if args[at] == "-m" and len(args) > at + 1 else None
        return Command([python, "-u", *args], per_rank=module not in _LAUNCHER_MODULES + _SESSION_MODULES)
    return Command([python, "-u", *args], per_rank=True, script=args[at])


def script_text(folder: Path, script: str | None) -> str:
    """Return the text of an entry script; '' if the entry is not a script, or it cannot be read."""
    try:
        return (folder / script).read_text("utf-8", "replace") if script else ""
    except OSError:
        return ""


class Paths(NamedTuple):
    """Paths of a job's data, output, checkpoint and spool, as its workers see them."""

    data: str | None
    """The dataset's directory; with several datasets, the directory that holds them all."""
    output: str
    checkpoint: str | None
    spool: str


def node_env(launch: Launch, join: JoinReply, paths: Paths) -> dict[str, str]:
    """Return the variables that are the same for all workers of a node.

    The user's own variables override them (see `merge`), except those that bind the devices.
    """
    env = {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(launch.cpu_threads),
        "SHOAL_JOB_ID": launch.job_id,
        "SHOAL_JOB_NAME": launch.job_name,
        "SHOAL_ATTEMPT": str(launch.attempt),
        "SHOAL_SPOOL": paths.spool,
        "SHOAL_NO_AUTOSTART": "1",
        "SHOAL_URL": launch.url,
        "SHOAL_DATA_CACHE": f"{launch.cache_dir}/stream",
        "JOBID": launch.job_id,
        "RUN_ID": launch.job_id,
        "PLATFORM": "pytorch",
        "OUTPUT_DIR": paths.output,
        "FLEXAI_OUTPUT_CHECKPOINT_DIR": paths.output,
    }
    env |= marks(launch)
    if join.world_size > 1:
        env["USE_DDP"] = "1"
        # Lightning's Trainer and Fabric use one device on a CPU, regardless of WORLD_SIZE.
        for prefix in ("PL_TRAINER", "LT"):
            env |= {f"{prefix}_DEVICES": str(join.accels), f"{prefix}_NUM_NODES": str(join.num_nodes)}
        if launch.slot_kind == "cpu":
            # Without it Accelerate and the Hugging Face Trainer ignore WORLD_SIZE where there is no GPU.
            env["ACCELERATE_USE_CPU"] = "true"
    if launch.ca:
        env["SHOAL_CA"] = launch.ca
    if paths.data:
        env["DATA_LOCATION"] = paths.data
    if paths.checkpoint:
        env["SHOAL_RESUME_FROM"] = env["FLEXAI_INPUT_CHECKPOINT_DIR"] = paths.checkpoint
    env |= binding_env(launch.slot_kind, launch.slots, launch.devices)
    return env | promise_env(launch, join)


def promise_env(launch: Launch, join: JoinReply) -> dict[str, str]:
    """Return the variables with the device the workers were promised.

    Empty on CPU and in sessions, where people check themselves.
    """
    if launch.slot_kind == "cpu" or join.lease is not None or is_session(join.entry):
        return {}
    return {DEVICE: launch.slot_kind} | ({ALLOW_CPU: "1"} if join.allow_cpu else {})


def is_plain(join: JoinReply, script: str) -> bool:
    """Return whether this node's worker is a plain process without RANK and the like. `script`: the text of the entry script.

    Scripts that find RANK set up torch.distributed, which a job that never has a second worker does not need. NetMind starts
    every script by torchrun, so scripts written for it may count on RANK.
    """
    return join.world_size == 1 and not join.is_distributed and not _FOR_NETMIND.search(script)


def rank_env(
    launch: Launch, join: JoinReply, local_rank: int, error_file: str, *, plain: bool = False
) -> dict[str, str]:
    """Return the variables with this worker's rank: those of torchrun, or only SHOAL_RANK for a plain process (`is_plain`)."""
    rank, world = launch.node * join.accels + local_rank, join.world_size
    if plain:
        return {RANK: str(rank)}
    env = {
        RANK: str(rank),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(join.accels),
        "GROUP_RANK": str(launch.node),
        "GROUP_WORLD_SIZE": str(join.num_nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": "default",
        "MASTER_ADDR": join.master_addr,
        "MASTER_PORT": str(join.master_port),
    }
    if world > 1:
        env |= {
            "TORCHELASTIC_RUN_ID": launch.attempt_id,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_ERROR_FILE": error_file,
        }
    return env


def place_env(launch: Launch, join: JoinReply, local_rank: int) -> dict[str, str]:
    """Return the engine's own variables with this worker's place. A cluster knows nodes, and not the workers on them."""
    values = {
        "rank": launch.node * join.accels + local_rank,
        "local_rank": local_rank,
        "node": launch.node,
        "world_size": join.world_size,
        "accels": join.accels,
        "num_nodes": join.num_nodes,
    }
    return {name: str(values[place]) for name, place in launch.place_env.items() if place in values}


def own_device_env(launch: Launch, join: JoinReply, local_rank: int, script: str) -> dict[str, str]:
    """Return the variables that show a worker its own accelerator only, as number 0; empty if it sees all of its node.

    Asked for by `--one-device-per-worker`. Scripts for NetMind that name cuda:0 get it unasked: there, every worker has its
    own device under that name. `script`: the text of the entry script.
    """
    unasked = _FOR_NETMIND.search(script) and "cuda:0" in script and not _BY_RANK.search(script)
    if not join.one_device_per_worker and not unasked:
        return {}
    slots, names = launch.slots[local_rank : local_rank + 1], launch.devices[local_rank : local_rank + 1]
    return binding_env(launch.slot_kind, slots, names)


def launcher_env(launch: Launch, join: JoinReply) -> dict[str, str]:
    """Return the variables for entries that start their own workers. torchrun reads options without a flag from PET_*."""
    return {
        "MASTER_ADDR": join.master_addr,
        "MASTER_PORT": str(join.master_port),
        "PET_NNODES": str(join.num_nodes),
        "PET_NODE_RANK": str(launch.node),
        "PET_NPROC_PER_NODE": str(join.accels),
        "PET_MASTER_ADDR": join.master_addr,
        "PET_MASTER_PORT": str(join.master_port),
        "PET_MAX_RESTARTS": "0",
    }


def network_env(
    join: JoinReply,
    host: Mapping[str, str],
    interface_to: Callable[[str], str | None] = interface_to,
    network_cards: Callable[[], list[str]] = network_cards,
) -> dict[str, str]:
    """Return the variables with the network interface that workers use to reach each other.

    Without them gloo resolves its own host name, which can take 10 s or yield 127.0.1.1. NCCL finds the fastest of several
    network cards itself, so it is told only where there is no choice.
    """
    if join.world_size == 1 or "GLOO_SOCKET_IFNAME" in host:
        return {}
    if join.master_addr.startswith("127."):
        return {"GLOO_SOCKET_IFNAME": "lo"}
    name = interface_to(join.master_addr)
    if name is None:
        return {}
    is_only = "NCCL_SOCKET_IFNAME" not in host and network_cards() in ([], [name])
    return {"GLOO_SOCKET_IFNAME": name, **({"NCCL_SOCKET_IFNAME": name} if is_only else {})}


def torchrun(launch: Launch, join: JoinReply, python: str, worker: list[str]) -> list[str]:
    """Return the command line of torchrun for this node; its workers run `worker`."""
    return [
        *(python, "-u", "-m", "torch.distributed.run", "--max-restarts=0", "--no-python"),
        *(f"--nnodes={join.num_nodes}", f"--node-rank={launch.node}", f"--nproc-per-node={join.accels}"),
        *(f"--master-addr={join.master_addr}", f"--master-port={join.master_port}"),
        *worker,
    ]


def merge(
    host: dict[str, str],
    contract: dict[str, str],
    user: dict[str, str],
    ranks: dict[str, str],
    rewrite: Callable[[str], str],
) -> dict[str, str]:
    """Return the merged environment of a worker; later arguments override earlier ones.

    Only the user's values are rewritten; the others already contain host paths where they must.
    """
    # New jobs cannot set reserved variables; one that was submitted before must not reach devices of other jobs either.
    bound = RESERVED & contract.keys()
    env = host | contract | {k: rewrite(v) for k, v in user.items() if k not in bound} | ranks
    seed = start_seed.seed_of(env)
    if seed is not None:
        env.setdefault("PYTHONHASHSEED", str(seed))
    # USE_DDP: with the start-up folder, workers can report their stacks if they wait for each other forever.
    if env.get(EMULATE_CUDA) == "1" or "USE_DDP" in contract or promised(contract) or seed is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *filter(None, [env.get("PYTHONPATH")])])
    return env


def without_startup(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` without the start-up folder on PYTHONPATH, if what that does can be done after torch was imported."""
    first, _, rest = env.get("PYTHONPATH", "").partition(os.pathsep)
    if first != str(STARTUP) or env.get(EMULATE_CUDA) == "1" or start_seed.VARIABLE in env:
        return dict(env)
    return {k: v for k, v in env.items() if k != "PYTHONPATH"} | ({"PYTHONPATH": rest} if rest else {})
