"""The runtime contract: the command line and the environment a worker gets. Pure, but for a look at the entry script."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.agent.interfaces import interface_to
from shoal.agent.wire import JoinReply, Launch
from shoal.core import start_seed
from shoal.core.device_promise import ALLOW_CPU, DEVICE, EMULATE_CUDA, promised

if TYPE_CHECKING:
    import ast

_KEPT = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TERM TMPDIR TEMP TMP LD_LIBRARY_PATH LD_PRELOAD SSL_CERT_FILE SSL_CERT_DIR "
    "REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY CPATH LIBRARY_PATH CC CXX".split()
)
_KEPT_PREFIXES = (
    "LC_ PIP_ UV_ CUDA NVIDIA_ NCCL_ GLOO_ UCX_ FI_ ROCM HIP_ ROCR_ HSA_ OMP_ MKL_ KMP_ GOMP_ OPENBLAS_ HF_ HUGGINGFACE_ TRANSFORMERS_ "
    "DATASETS_ TORCH PYTORCH_ TRITON_ XDG_ MALLOC_ TOKENIZERS_"
).split()
_TELLTALE = re.compile(r"TOKEN(?!IZERS)|SECRET|PASSWORD|_KEY|CREDENTIAL", re.IGNORECASE)
RANK = "SHOAL_RANK"
"""The number of a worker that the agent started, also where there is no RANK."""
_FOR_NETMIND = re.compile(r"^\s*(?:from|import)\s+NetmindMixins\b", re.MULTILINE)
STARTUP = Path(__file__).parents[1] / "sdk" / "emulate" / "startup"
"""On PYTHONPATH it reaches every Python process of the job, also those a launcher or a DataLoader starts."""
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_SESSION_MODULES = ("shoal.agent.lease_server", "shoal.agent.hold")
"""People work beside these, and start what they like: one per node, as with a launcher."""


def is_session(entry: list[str]) -> bool:
    """Return whether people work in this job, instead of a script."""
    return any(module in entry for module in _SESSION_MODULES)


class Command(NamedTuple):
    argv: list[str]
    per_rank: bool
    """One process per slot; else one per node, which starts its own workers."""
    script: str | None = None
    """The Python file it runs, relative to the source root, if it is one."""


def base_env(host: Mapping[str, str]) -> dict[str, str]:
    """What of the machine's environment a job may see: how to reach and drive things, never a credential or Shoal's own."""
    return {
        k: v
        for k, v in host.items()
        if (k.upper() in _KEPT or k.startswith(tuple(_KEPT_PREFIXES)))
        and not _TELLTALE.search(k)
        and not k.startswith(("SHOAL_", "TORCHELASTIC_"))
    }


def host_env(host: Mapping[str, str], python: str, runtime_python: str) -> dict[str, str]:
    """The base, with the interpreter's programs first on the path."""
    env = base_env(host)
    folders = dict.fromkeys(
        [str(Path(python).parent), str(Path(runtime_python).parent), *env.get("PATH", "/usr/bin:/bin").split(":")]
    )
    env["PATH"] = ":".join(folders)
    if python != runtime_python:
        env["VIRTUAL_ENV"] = str(Path(python).parent.parent)
    return env


def marks(launch: Launch) -> dict[str, str]:
    """By these a salvage finds what an agent left running."""
    return {"SHOAL_ATTEMPT_ID": launch.attempt_id, "SHOAL_NODE": str(launch.node)}


def command(entry: list[str], python: str, source: Path) -> Command:
    """How to run an entry: scripts and modules by our interpreter, launchers, shell scripts and programs as they are."""
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


def accepts_data(text: str) -> bool:
    """Whether a script takes `--data`: it adds that very argument, or parses a dataclass with a field `data`."""
    if "data" not in text:
        return False
    import ast

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return False
    dataclasses = "HfArgumentParser" in text
    return any(_adds_data(node) or (dataclasses and _has_data_field(node)) for node in ast.walk(tree))


def _adds_data(node: ast.AST) -> bool:
    import ast

    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
        return False
    return any(isinstance(a, ast.Constant) and a.value == "--data" for a in node.args)


def _has_data_field(node: ast.AST) -> bool:
    import ast

    fields = [s.target for s in node.body if isinstance(s, ast.AnnAssign)] if isinstance(node, ast.ClassDef) else []
    return any(isinstance(target, ast.Name) and target.id == "data" for target in fields)


def passes_data(argv: list[str]) -> bool:
    """The user gave `--data`, or an abbreviation argparse would take for it."""
    return any(a == "--data" or a.startswith("--data=") or a in ("--dat", "--da") for a in argv)


class Paths(NamedTuple):
    """Where a job finds its things, as seen by its workers."""

    data: str | None
    """The dataset's directory, or the one that holds them all when there are several."""
    output: str
    checkpoint: str | None
    spool: str


def node_env(launch: Launch, join: JoinReply, paths: Paths) -> dict[str, str]:
    """What is the same for all workers of a node. The user's own comes on top, but for what tells ranks apart."""
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
        # Lightning's Trainer and Fabric take a CPU for one device, whatever WORLD_SIZE says.
        for prefix in ("PL_TRAINER", "LT"):
            env |= {f"{prefix}_DEVICES": str(join.accels), f"{prefix}_NUM_NODES": str(join.num_nodes)}
        if launch.slot_kind == "cpu":
            # Without it Accelerate and the Hugging Face Trainer ignore WORLD_SIZE where there is no GPU.
            env["ACCELERATE_USE_CPU"] = "true"
    if paths.data:
        env["DATA_LOCATION"] = paths.data
    if paths.checkpoint:
        env["SHOAL_RESUME_FROM"] = env["FLEXAI_INPUT_CHECKPOINT_DIR"] = paths.checkpoint
    if launch.slot_kind == "cuda":
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, launch.slots))
    elif launch.slot_kind == "rocm":
        env["HIP_VISIBLE_DEVICES"] = ",".join(map(str, launch.slots))
    return env | promise_env(launch, join)


def promise_env(launch: Launch, join: JoinReply) -> dict[str, str]:
    """Return what the workers were promised to train on. A person in a session sees for themselves, and is not stopped."""
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
    """Return the variables that tell this worker its place: those of torchrun, unless it is a plain process (`is_plain`)."""
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


def launcher_env(launch: Launch, join: JoinReply) -> dict[str, str]:
    """For entries that start their own workers: torchrun takes what its flags leave open from PET_*."""
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
    join: JoinReply, host: Mapping[str, str], interface_to: Callable[[str], str | None] = interface_to
) -> dict[str, str]:
    """By which interface workers meet, so that gloo need not ask the resolver who we are: that may cost 10 s, or answer 127.0.1.1."""
    if join.world_size == 1 or "GLOO_SOCKET_IFNAME" in host:
        return {}
    if join.master_addr.startswith("127."):
        return {"GLOO_SOCKET_IFNAME": "lo"}
    name = interface_to(join.master_addr)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": host.get("NCCL_SOCKET_IFNAME", name)} if name else {}


def torchrun(launch: Launch, join: JoinReply, python: str, worker: list[str]) -> list[str]:
    """One torchrun node whose workers run `worker`."""
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
    """Later wins; only the user's own values are rewritten, the others hold host paths already where they must."""
    env = host | contract | {k: rewrite(v) for k, v in user.items()} | ranks
    seed = start_seed.seed_of(env)
    if seed is not None:
        env.setdefault("PYTHONHASHSEED", str(seed))
    # Those of a gang can be asked where they are, should they wait for each other for ever.
    if env.get(EMULATE_CUDA) == "1" or "USE_DDP" in contract or promised(contract) or seed is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *filter(None, [env.get("PYTHONPATH")])])
    return env


def without_startup(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` as it is without the check of a promised device, if that is all our folder on PYTHONPATH is for."""
    first, _, rest = env.get("PYTHONPATH", "").partition(os.pathsep)
    if first != str(STARTUP) or not promised(env) or "USE_DDP" in env or start_seed.VARIABLE in env:
        return dict(env)
    return {k: v for k, v in env.items() if k != "PYTHONPATH"} | ({"PYTHONPATH": rest} if rest else {})
