"""Bytes on the wire and loss at equal samples: DDP, hivemind's averaging and low-communication rounds, in one run.

    python bench/swarm.py [--task gpt] [--steps 1500] [--width 128] [--peers 3] [--local-steps 50] [--json]

Every peer is a host of its own (network namespaces; needs root), all start from the same weights with the same inner
optimizer and global batch; large-batch averaging takes `--large` of them at once, with twice the learning rate. Bytes are
those the peers' network cards have sent, start and leaving included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shoal.testing import hosts

WORKER = Path(__file__).with_name("swarm_worker.py")
WAYS = ("ddp", "large-batch", "local-steps")
PORT = 29_400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=["gpt", "mlm"], default="gpt")
    parser.add_argument("--steps", type=int, default=1500, help="global batches")
    parser.add_argument("--width", type=int, default=128, help="of the model: 128 has 409,000 parameters")
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="samples of a peer's own batch")
    parser.add_argument("--local-steps", type=int, default=50)
    parser.add_argument("--large", type=int, default=8, help="global batches in one batch of large-batch averaging")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--swarm", type=json.loads, default={}, help="more settings of the swarm, as JSON")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if (problem := hosts.missing()) is not None:
        sys.exit(f"bench/swarm.py cannot count bytes here: {problem}")
    found = {way: measure(way, args) for way in args.ways}
    print(json.dumps(found, indent=1) if args.json else report(found))


def measure(way: str, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        lan = stack.enter_context(hosts.lan(*(f"p{i}" for i in range(args.peers))))
        before = [_sent(host) for host in lan.hosts]
        said: list[list[dict[str, Any]]] = [[] for _ in lan.hosts]
        first: list[str] = []
        threads = []
        for rank, host in enumerate(lan.hosts):
            process = _start(way, args, host, rank, lan.hosts[0].address, first, Path(folder))
            stack.callback(process.kill)
            if rank == 0 and way != "ddp":
                addresses = json.loads(_line(process))["address"]
                first = [address for address in addresses if f"/{host.address}/" in address]
            thread = threading.Thread(target=_listen, args=(process, said[rank]), daemon=True)
            thread.start()
            threads.append((thread, process))
        for thread, process in threads:
            thread.join()
            if process.wait() != 0:
                sys.exit(f"a peer of {way} failed: {(Path(folder) / f'{way}.log').read_text()[-3000:]}")
        sent = sum(_sent(host) - had for host, had in zip(lan.hosts, before, strict=True))
    points = [(facts["samples"], facts["loss"]) for facts in said[0] if "loss" in facts]
    samples = points[-1][0]
    rounds = max((facts["rounds"] for facts in said[0] if "rounds" in facts), default=None)
    exchanged = sum(facts["exchanged"] for lines in said for facts in lines if "exchanged" in facts) / samples
    return {"samples": samples, "bytes_per_sample": sent / samples, "exchanged_per_sample": exchanged, "rounds": rounds,
            "loss": points[-1][1], "curve": points}  # fmt: skip


def report(found: dict[str, Any]) -> str:
    base = found.get("ddp") or next(iter(found.values()))
    lines = [f"{'':>14}{'samples':>10}{'bytes/sample':>14}{'of DDP':>9}{'loss':>9}{'to DDP':>9}   loss on the way"]
    for way, facts in found.items():
        share, gap = base["bytes_per_sample"] / facts["bytes_per_sample"], facts["loss"] / base["loss"] - 1
        marks = " ".join(f"{_at(facts['curve'], base['samples'] * part / 8):.3f}" for part in range(1, 9))
        lines.append(
            f"{way:>14}{facts['samples']:>10}{facts['bytes_per_sample']:>14,.0f}{f'1/{share:.0f}':>9}"
            f"{facts['loss']:>9.4f}{gap:>+9.1%}   {marks}"
        )
    return "\n".join(lines)


def _start(
    way: str, args: argparse.Namespace, host: Any, rank: int, master: str, first: list[str], folder: Path
) -> subprocess.Popen[bytes]:
    batch = args.batch * args.peers
    # An exchange for every small batch would be all it does.
    target = batch * (args.large if way == "large-batch" else 1)
    swarm = {"run_id": "bench", "target_batch_size": target, "mode": way, "local_steps": args.local_steps, "initial_peers": first,
             "matchmaking_s": 1.0 if way == "large-batch" else 3.0, "compression": "fp16" if way == "large-batch" else "int8", **args.swarm}  # fmt: skip
    told = {"way": way, "task": args.task, "width": args.width, "until": args.steps * batch, "steps": args.steps * batch // target, "batch": args.batch, "global_batch": batch, "peers": args.peers,
            "dir": str(folder / f"{way}-{rank}"), "swarm": swarm}  # fmt: skip
    env = {"OMP_NUM_THREADS": "1"}
    if way == "ddp":
        env |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(args.peers), "MASTER_ADDR": master,
                "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": "eth0"}  # fmt: skip
    argv = [sys.executable, str(WORKER), json.dumps(told)]
    with (folder / f"{way}.log").open("ab") as log:
        process: subprocess.Popen[bytes] = host.popen(*argv, env=env, stdout=subprocess.PIPE, stderr=log)
    return process


def _sent(host: Any) -> int:
    for line in host.run("cat", "/proc/net/dev").stdout.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[8])
    raise RuntimeError(f"{host.name} has no network card")


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return next(line for line in process.stdout if line.startswith(b"{"))


def _listen(process: subprocess.Popen[bytes], said: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    said.extend(json.loads(line) for line in process.stdout if line.startswith(b"{"))


def _at(curve: list[tuple[int, float]], samples: float) -> float:
    """The last loss measured up to there."""
    return next((loss for at, loss in reversed(curve) if at <= samples), curve[0][1])


if __name__ == "__main__":
    main()
