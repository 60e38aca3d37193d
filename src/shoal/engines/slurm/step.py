"""A task of our Slurm job, run by srun on a compute node: the parent of one agent, for as long as that lives.

It tells the agent where it has come to be (Slurm chooses), passes SIGTERM on, ends what the agent leaves behind, and leaves
word when the agent is no more: Slurm itself only knows of the job as a whole.

usage: python -m shoal.engines.slurm.step ENGINE NODES_DIR ATTEMPT_ID NODE,NODE…
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.agent.inner import become_subreaper, kill_below, prctl
from shoal.core.private import write_private

GONE = "gone"
"""The file in a node's directory that says its agent has ended."""
_PR_SET_PDEATHSIG = 1
_DEVICES = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "ROCR_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}


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
    agent = subprocess.Popen(
        [sys.executable, "-m", "shoal.agent", str(launch)],
        stdin=subprocess.DEVNULL,
        cwd=work,
        preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: agent.terminate())
    code = agent.wait()
    kill_below(os.getpid())
    (work / GONE).touch(mode=0o600)
    return 0 if code == 0 else 1


def placed(launch: dict[str, Any], engine: str, env: Mapping[str, str]) -> dict[str, Any]:
    """The launch with the machine and the accelerators that Slurm has given us, and as many threads as it has cores."""
    found = {"machine": f"{engine}:{env.get('SLURMD_NODENAME') or launch['machine'].rpartition(':')[2]}"}
    given = env.get(_DEVICES.get(launch["slot_kind"], ""), "")
    devices = [int(d) for d in given.split(",") if d.isdigit()]
    slots = launch["slots"]
    if len(devices) == len(slots):
        # HIP counts those that ROCR leaves to be seen.
        slots = list(range(len(devices))) if launch["slot_kind"] == "rocm" else devices
    elif launch["slot_kind"] == "cpu":
        slots = list(range(len(slots)))
    cores = int(env.get("SLURM_CPUS_PER_TASK") or 0)
    threads = max(1, cores // len(slots)) if cores else launch["cpu_threads"]
    return launch | found | {"slots": slots, "cpu_threads": threads}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
