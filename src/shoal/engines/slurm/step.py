"""A task of our Slurm job, run by srun on a compute node: the parent process of one agent.

It writes the machine and devices that Slurm chose into the launch file, passes SIGTERM on, kills what the agent leaves behind,
and writes a file when the agent has ended, because Slurm only knows the state of the job as a whole.

usage: python -m shoal.engines.slurm.step ENGINE NODES_DIR ATTEMPT_ID NODE,NODE…
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.agent.workers.parent import become_subreaper, kill_below, prctl
from shoal.core.private import write_private

GONE = "gone"
"""Name of the file in a node's directory that says that its agent has ended."""
_PR_SET_PDEATHSIG = 1
_DEVICES = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "ROCR_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}

_PLACES = {
    "SLURM_PROCID": "rank",
    "SLURM_LOCALID": "local_rank",
    "SLURM_NODEID": "node",
    "SLURM_NTASKS": "world_size",
    "SLURM_NPROCS": "world_size",
    "SLURM_NTASKS_PER_NODE": "accels",
    "SLURM_NNODES": "num_nodes",
    "SLURM_JOB_NUM_NODES": "num_nodes",
}
"""Slurm knows one task per node. Frameworks that find these variables take their rank from them, so workers get their own."""
_CREDENTIALS = frozenset({"SLURM_JWT"})


def main(args: list[str]) -> int:
    if len(args) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    engine, nodes_dir, attempt_id, nodes = args
    node = nodes.split(",")[int(os.environ["SLURM_PROCID"])]
    work = Path(nodes_dir) / f"{attempt_id}.{node}"
    launch = work / "launch.json"
    write_private(launch, json.dumps(placed(json.loads(launch.read_text()), engine, os.environ)))
    become_subreaper()
    # Python runs handlers only when the main thread is awake. Its wait must end for every signal, whichever thread gets it.
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    agent = subprocess.Popen(
        [sys.executable, "-m", "shoal.agent", str(launch)],
        stdin=subprocess.DEVNULL,
        cwd=work,
        preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: agent.terminate())
    while (code := agent.poll()) is None:
        select.select([wake_r], [], [])
        os.read(wake_r, 4096)
    kill_below(os.getpid())
    (work / GONE).touch(mode=0o600)
    return 0 if code == 0 else 1


def placed(launch: dict[str, Any], engine: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the launch with the machine, accelerators and number of threads that Slurm has allocated."""
    found = {"machine": f"{engine}:{env.get('SLURMD_NODENAME') or launch['machine'].rpartition(':')[2]}"}
    names = [name for name in env.get(_DEVICES.get(launch["slot_kind"], ""), "").split(",") if name]
    slots, devices = launch["slots"], list[str]()
    if len(names) == len(slots):
        # MIG slices and UUIDs are kept as Slurm wrote them. HIP numbers only what ROCR_VISIBLE_DEVICES leaves visible.
        devices = names
        counted = launch["slot_kind"] != "rocm" and all(name.isdigit() for name in names)
        slots = list(map(int, names)) if counted else list(range(len(names)))
    elif launch["slot_kind"] == "cpu":
        slots = list(range(len(slots)))
    cores = int(env.get("SLURM_CPUS_PER_TASK") or 0)
    threads = max(1, cores // len(slots)) if cores else launch["cpu_threads"]
    told = {name: env[name] for name in env if name.startswith("SLURM_") and name not in _CREDENTIALS}
    return (
        launch
        | found
        | {
            "slots": slots,
            "devices": devices,
            "cpu_threads": threads,
            "env": told,
            "place_env": _PLACES,
        }
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
