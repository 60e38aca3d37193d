"""Tries a machine's accelerators: a product of matrices on each, alone as a worker sees it, and one all-reduce over all of them.

Each trial is a process of its own with the torch of the given interpreter; this module itself imports no torch. Run as
`python -m shoal.agent.devices.trial` it tries the devices of its machine and prints the result as one JSON line.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from shoal.agent.devices import inventory
from shoal.agent.devices.binding import binding_env, visible_name
from shoal.agent.devices.device import Device

TIMEOUT_S = 180.0
_TENSOR = """
import json, sys, torch
kind = sys.argv[1]
module = torch.xpu if kind == "xpu" else torch.cuda
found = {"torch": torch.__version__, "count": module.device_count()}
x = torch.ones(256, 256, device="xpu" if kind == "xpu" else "cuda")
found["sum"] = float((x @ x).sum().item())
found["name"] = module.get_device_name(0)
print(json.dumps(found))
"""
_ALL_REDUCE = """
import datetime, sys, torch, torch.distributed as dist
kind, rank, world, port = sys.argv[1], *map(int, sys.argv[2:5])
name = {"cpu": "cpu", "xpu": "xpu"}.get(kind, "cuda")
device = torch.device("cpu") if name == "cpu" else torch.device(name, 0)
backend = {"cpu": "gloo", "xpu": "xccl"}.get(name, "nccl")
dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world,
                        timeout=datetime.timedelta(seconds=120))
values = torch.full((1 << 18,), float(rank + 1), device=device)
dist.all_reduce(values)
wanted = world * (world + 1) / 2
assert bool((values == wanted).all()), f"wrong sum: {values[0].item()} instead of {wanted}"
dist.destroy_process_group()
"""


def try_all(devices: Sequence[Device], python: str = sys.executable) -> dict[str, Any]:
    """Return {"devices": [{label, uuid, said}], "all_reduce"}, where "ok" is good, and else the error stands.

    Broken devices are left out; `all_reduce` is None unless at least two devices work.
    """
    usable = [device for device in devices if not device.problem and device.kind != "mps"]
    said = [run_tensor(device, python) for device in usable]
    good = [device for device, words in zip(usable, said, strict=True) if words == "ok" and not device.parent]
    return {
        "devices": [
            {"label": device.label, "uuid": device.identity, "said": words}
            for device, words in zip(usable, said, strict=True)
        ],
        "all_reduce": all_reduce(good[0].kind, good, python) if len(good) > 1 else None,
    }


def run_tensor(device: Device, python: str = sys.executable) -> str:
    """Return "ok" if a product of two matrices on this device alone is right, else why it is not."""
    try:
        done = subprocess.run(
            [python, "-c", _TENSOR, device.kind],
            env=_environment(device),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S:.0f} s"
    if done.returncode != 0:
        return _last_line(done.stderr, done.returncode)
    result = json.loads(done.stdout.splitlines()[-1])
    if result["count"] != 1:
        return f"{result['count']} devices are visible to a worker that was given one"
    return "ok" if result["sum"] == 256.0**3 else f"wrong result: {result['sum']}"


def all_reduce(kind: str, devices: Sequence[Device], python: str = sys.executable) -> str:
    """Return "ok" if one worker per device adds up their values right, else why not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [python, "-c", _ALL_REDUCE, kind]
    workers = [
        subprocess.Popen(
            [*words, str(rank), str(len(devices)), port],
            env=_environment(device) | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, device in enumerate(devices)
    ]
    deadline, said = time.monotonic() + TIMEOUT_S, list[str]()
    try:
        for device, worker in zip(devices, workers, strict=True):
            _, errors = worker.communicate(timeout=max(0.0, deadline - time.monotonic()))
            if worker.returncode != 0:
                said.append(f"{device.label}: {_last_line(errors, worker.returncode)}")
    except subprocess.TimeoutExpired:
        said.append(f"no answer within {TIMEOUT_S:.0f} s")
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return said[0] if said else "ok"


def _environment(device: Device) -> dict[str, str]:
    return os.environ | binding_env(device.kind, [device.index], [visible_name(device)])


def _last_line(errors: str, code: int) -> str:
    lines = errors.strip().splitlines()
    return lines[-1][:300] if lines else f"exit code {code}"


if __name__ == "__main__":
    print(json.dumps(try_all(inventory.scan().offered)))
