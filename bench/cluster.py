"""Submit → first line of user code for a gang of 2 nodes × 2 workers on a warm Ray cluster of two hosts, side by side with
bare torchrun on both hosts and with Ray Train's TorchTrainer on the same cluster; and what a machine costs while idle.

    python bench/cluster.py [--repeats 5] [--idle 30]

All are timed from the start of their command line program to the moment the first worker runs its first statement,
interleaved, medians compared. Target: at most 1.5 × torchrun, and well ahead of TorchTrainer. The hosts are network
namespaces of this machine (root, iproute2, openssh-server), so all share its cores.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shoal.engines.ray.daemon import ENVIRONMENT
from shoal.engines.ray.head import Head
from shoal.testing.hosts import Host, Lan, lan, missing
from shoal.testing.live import LiveServer, live_server

SCRIPT = "import time; print('FIRST', time.time(), flush=True)\n"
TRAINER = """
import json, sys, time
import ray, ray.train
from ray.train.torch import TorchTrainer
asked = json.loads(sys.argv[1])
def loop(config):
    import time
    with open(config["file"], "a") as file:
        file.write(f"FIRST {time.time()}\\n")
# Where the hosts file gives 127.0.1.1 for the own name, gloo would tell the others that.
ray.init(address=asked["address"], log_to_driver=False, runtime_env={"env_vars": {"GLOO_SOCKET_IFNAME": "eth0"}})
scaling = ray.train.ScalingConfig(num_workers=4, resources_per_worker={"CPU": 0, "shoal_slot": 1})
run = ray.train.RunConfig(storage_path=asked["folder"])
TorchTrainer(loop, train_loop_config={"file": asked["file"]}, scaling_config=scaling, run_config=run).fit()
"""


def first_line(text: str) -> float:
    return min(float(line.split("FIRST ")[1]) for line in text.splitlines() if "FIRST " in line)


def torchrun(net: Lan, folder: Path) -> float:
    begin, running = time.time(), []
    for rank, host in enumerate(net.hosts):
        argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(rank),
                "--nproc-per-node", "2", "--master-addr", net.hosts[0].address, "--master-port", "29777", str(folder / "train.py")]  # fmt: skip
        running.append(
            host.popen(
                *argv, cwd=folder, env={"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        )
    said = "".join(process.communicate()[0].decode() for process in running)
    return first_line(said) - begin


def shoal(server: LiveServer, folder: Path, name: str) -> float:
    begin = time.time()
    argv = ["training", "run", name, "--dir", str(folder), "--nodes", "2", "--accels", "2", "--exclude", "local", "-f"]
    return first_line(server.cli(*argv, "--", "train.py").stdout) - begin


def torch_trainer(server: LiveServer, folder: Path) -> float:
    head = Head(server.layout)
    info = head.ensure()
    said = folder / f"said-{time.time()}"
    asked = json.dumps({"address": info.gcs_address, "folder": str(folder / "ray"), "file": str(said)})
    env = os.environ | ENVIRONMENT | {"RAY_AUTH_TOKEN_PATH": str(head.token_file), "OMP_NUM_THREADS": "1"}
    begin = time.time()
    done = subprocess.run([sys.executable, "-c", TRAINER, asked], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"TorchTrainer failed:\n{done.stderr[-2000:]}")
    return first_line(said.read_text()) - begin


def idle(host: Host, seconds: float) -> str:
    processes = host.processes()
    before = sum(sum(p.cpu_times()[:2]) for p in processes)
    time.sleep(seconds)
    used = sum(sum(p.cpu_times()[:2]) for p in processes if p.is_running()) - before
    memory = sum(p.memory_full_info().pss for p in processes if p.is_running())
    return f"{len(processes)} processes, {memory / 1e6:.0f} MB (PSS), {100 * used / seconds:.1f} % of one core"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--idle", type=float, default=30)
    asked = parser.parse_args()
    if reason := missing():
        raise SystemExit(f"cannot run here: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Ray's head would stay
    with tempfile.TemporaryDirectory(prefix="sb-") as root:
        folder = Path(root) / "code"
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        with lan("left", "right") as net, live_server(Path(root) / "home", slots=2) as server:
            for host in net.hosts:
                server.cli("pool", "add", host.target, "--name", host.name, "--key", str(net.key), "--slots", "2",
                           "--python", sys.executable)  # fmt: skip
            try:
                report(compare(server, net, folder, asked.repeats))
                print(f"idle machine: {idle(net.hosts[0], asked.idle)}")
            finally:
                server.cli("pool", "remove", *(host.name for host in net.hosts), "--force", check=None)


def compare(server: LiveServer, net: Lan, folder: Path, repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"torchrun": [], "shoal": [], "TorchTrainer": []}
    for i in range(repeats + 1):  # the first round only warms the disk cache
        found = {"torchrun": torchrun(net, folder), "shoal": shoal(server, folder, f"job-{i}"),
                 "TorchTrainer": torch_trainer(server, folder)}  # fmt: skip
        for name, value in found.items():
            times[name] += [value] if i else []
    return times


def report(times: dict[str, list[float]]) -> None:
    base = statistics.median(times["torchrun"])
    for name, values in times.items():
        shown = " ".join(f"{v:.2f}" for v in sorted(values))
        print(
            f"{name:14} median {statistics.median(values):.2f} s   {statistics.median(values) / base:.2f} × torchrun   ({shown})"
        )


if __name__ == "__main__":
    main()
