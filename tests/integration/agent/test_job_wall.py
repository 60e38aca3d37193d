"""T3, T4, T19, T23: one hostile job per set-up tries everything that a lease's probes try and everything that was once seen."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from test_build_walls import BACKEND, PYPROJECT

from shoal.agent.sandbox import cgroups
from shoal.testing.agent_gang import Gang

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("bwrap"), reason="S3 needs root and bubblewrap")

FOLDER = Path(__file__).parents[1]
LIMITS = {"memory": 160 << 20, "disk": 32 << 20, "shm": 8 << 20, "pids": 60}
S3 = {"least": "S3", "files": "own", "limits": LIMITS}
CONTROL_ONLY = ["join_again_with_the_token", "find_the_agents_token_in_its_own_environment"]
"""Probes that outside find nothing, because there is no job's environment, or repeat another."""
NETWORK = {
    "reach_another_jobs_port",
    "reach_another_jobs_port_by_the_machines_address",
    "reach_an_abstract_socket",
    "have_a_route_to_the_metadata_service",
    "have_a_route_to_the_world",
    "reach_another_server_by_the_forwarded_port",
}
"""The weaker points of a job with several nodes, which shares the machine's network."""
LEAST = {
    "read_the_key_of_all_secrets",
    "read_the_database",
    "read_another_jobs_token",
    "read_the_token_of_its_own_agent",
    "read_a_chunk_of_the_store",
    "read_another_jobs_source",
    "unmount_what_hides_the_server",
    "mount_a_file_system",
    "make_a_user_namespace",
    "signal_the_agent",
    "read_the_agents_environment",
    "load_a_program_into_the_kernel",
    "make_a_device",
}
"""Probes that fail even where the job sees the files of the server's user."""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder outside /tmp, which a job has to itself."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Things of others on the machine: a data directory with everything once seen, a process, ports, sockets."""
    home = tmp_path_factory.mktemp("home")
    paths = {
        "secret_key": "server/secret.key",
        "database": "server/shoal.db",
        "their_launch": "nodes/att_other.0/launch.json",
        "their_source": "nodes/att_other.0/source/train.py",
        "chunk": "store/chunks/ab/cdef",
        "their_dataset": "cache/data/dataset/theirs/a.txt",
        "volume": "cache/leases/lease_1/volume.img",
        "ray_token": "ray/token",
        "ssh_key": "user/.ssh/id_ed25519",
    }
    folders = {
        "store": "store",
        "their_output": "nodes/att_other.0/output-checkpoint",
        "their_environment": "cache/envs/theirs",
        "pip_cache": "cache/pip/theirs",
        "user_home": "user",
    }
    for name in paths.values():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("canary")
    for name in folders.values():
        (home / name).mkdir(parents=True, exist_ok=True)
    (home / "canary").write_text("another person's")
    with ExitStack() as stack:
        victim = subprocess.Popen(["sleep", "600"], env={"CANARY": "another's", "PATH": os.environ["PATH"]})
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        port = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        abstract, named = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        abstract.bind(f"\0shoal-canary-job-{os.getpid()}")
        named.bind(f"{home}/named.sock")
        for end in (abstract, named):
            end.listen()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.connect(("192.0.2.1", 9))
            address = out.getsockname()[0]
        yield {
            **{key: str(home / name) for key, name in {**paths, **folders}.items()},
            "home": str(home),
            "canary": str(home / "canary"),
            "victim": victim.pid,
            "port": port.getsockname()[1],
            "address": address,
            "abstract": f"shoal-canary-job-{os.getpid()}",
            "named": f"{home}/named.sock",
            "service": f"{home}/named.sock",
            "disk": "/dev/loop0",
            "group": str(cgroups.Group("x").folders[0].parent.parent / "cgroup.procs"),
            "memory_mb": 160,
            "disk_mb": 32,
            "tmp_mb": 32,
            "shm_mb": 8,
            "pids": 60,
        }


def probes() -> dict[str, str]:
    found = [*(FOLDER / "job_probes").glob("*.py"), *(FOLDER / "lease_probes").glob("*.py")]
    return {path.name: path.read_text() for path in found if path.name != "__main__.py"}


def attack(
    gang: Callable[..., Gang], machine: dict[str, Any], sandbox: dict[str, Any], leave_out: tuple[str, ...] = ()
) -> tuple[Gang, dict[str, list[Any]]]:
    """Run the job with all probes; return its gang and the table of node 0."""
    job = gang(["run_probes.py"], {}, start=False, sandbox=sandbox, num_nodes=sandbox.get("nodes", 1))
    folder = job.work_dir()
    facts = {
        **machine,
        "agent_folder": str(folder),
        "own_folder": str(folder),
        "own_launch": str(folder / "launch.json"),
        "own_dataset": "/input/text/a.txt",
        "outbox": str(folder / "spool" / "log"),
        "mounted": machine["store"],
        "agent": os.getpid(),
        "token": "token-0",
        "scratch": "scratch",
        "proxy": 3128,
        "leave_out": [*leave_out, "list_the_agents_own_folder"],  # empty but for what the job may see
    }
    job.server.reply.source = job.server.manifest({**probes(), "facts.json": json.dumps(facts)})
    job.server.reply.mounts = [job.server.mount("/input/text", {"a.txt": "alpha"})]
    job.hide = [str(Path(machine["home"]) / name) for name in ("server", "nodes", "store", "ray")]
    job.start().finish(120)
    tables = [line.removeprefix("TABLE ") for line in job.server.log(rank=0) if line.startswith("TABLE ")]
    assert tables, (job.server.last(), job.server.log())
    return job, json.loads(tables[0])


def succeeded(table: dict[str, list[Any]]) -> set[str]:
    return {name for name, (done, _) in table.items() if done}


def test_nothing_hostile_succeeds_in_a_job_at_s3(gang: Callable[..., Gang], machine: dict[str, Any]) -> None:
    job, table = attack(gang, machine, S3)
    last = job.server.last()
    assert last is not None and (last.sandbox, last.exit_code) == ("S3", 0)
    assert len(table) >= 80
    assert succeeded(table) == set()
    assert not job.left()


def test_everything_that_was_seen_succeeds_outside(machine: dict[str, Any], tmp_path: Path) -> None:
    """Otherwise the probes would prove nothing. The lease's test does this for the other probes."""
    for name, text in probes().items():
        (tmp_path / name).write_text(text)
    own = tmp_path / "own"
    own.mkdir()
    (own / "launch.json").write_text(json.dumps({"token": "token-0"}))
    (tmp_path / "data.txt").write_text("alpha")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    others = [line.split("(")[0][4:] for text in probes().values() for line in text.splitlines() if line[:4] == "def "]
    seen = [line.split("(")[0][4:] for line in probes()["seen.py"].splitlines() if line.startswith("def ")]
    facts = {
        **machine,
        "own_folder": str(own),
        "own_launch": str(own / "launch.json"),
        "own_dataset": str(tmp_path / "data.txt"),
        "outbox": str(own),
        "mounted": str(mounted),
        "agent": os.getpid(),
        "token": "token-0",
        "scratch": str(tmp_path / "scratch"),
        "leave_out": [name for name in others if name not in seen],
    }
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    script = f"mount -t tmpfs none {mounted} && exec {sys.executable} run_probes.py"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    table = json.loads(done.stdout.splitlines()[-1].removeprefix("TABLE "))
    wanted = {name for name in table if name not in CONTROL_ONLY and name != "read_the_agents_environment"}
    assert len(wanted) >= 22
    assert {name: table[name][1] for name in wanted - succeeded(table)} == {}


def test_a_job_with_several_nodes_is_weaker_only_by_its_network_and_says_so(
    gang: Callable[..., Gang], machine: dict[str, Any]
) -> None:
    wish = {"least": "S2", "files": "own", "limits": LIMITS, "nodes": 2}
    left_out = tuple(name for name in ("have_more_memory_than_allowed", "have_more_processes_than_allowed"))
    job, table = attack(gang, machine, wish, left_out)
    last = job.server.last()
    assert last is not None and last.sandbox == "S2: no network of its own, because it has several nodes"
    assert succeeded(table) - NETWORK == set()
    assert "reach_another_jobs_port" in succeeded(table)


def test_a_job_that_sees_the_owners_files_sees_nothing_of_the_server(
    gang: Callable[..., Gang], machine: dict[str, Any]
) -> None:
    bombs = tuple(name for name in probe_names("share.py") if name.startswith(("have_more", "have_a_larger", "fill")))
    job, table = attack(gang, machine, {"least": "S0", "files": "machine"}, bombs)
    last = job.server.last()
    assert last is not None and last.sandbox == "S1: sees the files of the server's user"
    assert succeeded(table) & LEAST == set()
    assert set(table) >= LEAST


def probe_names(file: str) -> list[str]:
    return [line.split("(")[0][4:] for line in probes()[file].splitlines() if line.startswith("def ")]


@pytest.mark.parametrize("missing", ["bubblewrap", "several nodes"])
def test_a_machine_that_offers_less_refuses_the_job_and_says_what_to_do(
    gang: Callable[..., Gang], missing: str
) -> None:
    env = {"SHOAL_SANDBOX": "rewrite"} if missing == "bubblewrap" else {}
    nodes = 2 if missing == "several nodes" else 1
    job = gang(["t.py"], {"t.py": "print('ran')"}, env=env, sandbox=S3, num_nodes=nodes)
    job.finish()
    last = job.server.last()
    assert last is not None and last.exit_code == 1
    assert (last.reason or "").startswith(
        "this server requires sandbox S3 for jobs, but machine 'local' offers less: no "
    )
    assert missing in (last.reason or "")
    assert "shoal server start --job-sandbox S2" in (last.reason or "")
    assert job.server.log(rank=0) == []


BOMBS = {
    "memory": (
        "x = bytearray(400 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1",
        r"out of memory: used .* of 167\.8 MB",
    ),
    "disk": (
        "import os, time\nfor n in range(1000):\n  open(f'/tmp/{n}', 'wb').write(os.urandom(1 << 20)); time.sleep(0.02)",
        r"out of disk space: used .* MB of 33\.6 MB",
    ),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_job_that_exceeds_a_limit_ends_with_that_reason(gang: Callable[..., Gang], kind: str) -> None:
    script, reason = BOMBS[kind]
    job = gang(["t.py"], {"t.py": script + "\nprint('survived')\n"}, sandbox=S3)
    job.finish()
    last = job.server.last()
    assert last is not None and last.exit_code == -9
    assert re.fullmatch(reason, last.reason or ""), last.reason
    assert job.server.log(rank=0) == [] and not job.left()


def test_a_fork_bomb_is_held_at_its_limit_and_leaves_nothing(gang: Callable[..., Gang]) -> None:
    bomb = "import os, sys, time\nwhile True:\n  try:\n    if os.fork() == 0: time.sleep(600)\n  except OSError: sys.exit('held')"
    job = gang(["t.py"], {"t.py": bomb}, sandbox=S3)
    job.finish()
    last = job.server.last()
    assert last is not None and last.exit_code == 1 and "held" in (last.reason or "")
    assert not job.left()
    assert not any(folder.exists() for folder in cgroups.Group(f"{job.attempt_id}.0").folders)


def test_code_that_a_package_runs_while_it_is_built_is_as_confined_as_the_job(
    gang: Callable[..., Gang], machine: dict[str, Any]
) -> None:
    job = gang(["t.py"], {}, start=False, sandbox=S3, env={"PIP_NO_INDEX": "1"})
    job.server.reply.env["SHOAL_WORKSPACE"] = "w1"
    secrets = [machine["secret_key"], machine["their_launch"], str(job.work_dir() / "launch.json"), machine["canary"]]
    writes = [machine["pip_cache"] + "/x", machine["their_environment"] + "/x", str(job.work_dir() / "x"), "/usr/x"]
    backend = f"READ, WRITE, MARK = {secrets!r}, {writes!r}, 'CANARY'\n{BACKEND}"
    plant = "    os.symlink('/etc', 'pkg-link')\n    seen, written = {}, []\n"
    files = {
        "t.py": "import os, probe\nprint(sorted(set(probe.SEEN.values())), probe.WRITTEN, probe.UID, os.path.lexists('pkg-link'))\n"
        "open(os.path.dirname(probe.__file__) + '/planted', 'w')",
        "requirements.txt": "./pkg\n",
        "pkg/backend.py": backend.replace("    seen, written = {}, []\n", plant),
        "pkg/pyproject.toml": PYPROJECT,
    }
    job.server.reply.source = job.server.manifest(files)
    job.start().finish(120)
    last = job.server.last()
    assert last is not None and "Read-only file system" in (last.reason or ""), (last, job.server.log())
    [line] = job.server.log(rank=0, stream="out")
    assert line == "['', 'FileNotFoundError'] [] 1000 False"
    [environment] = (job.cache / "envs").glob("*/venv/lib/python*/site-packages/probe.py")
    assert environment.stat().st_uid == 0
