"""Trivial real trials on two slots: by a server's sweep, by torchrun in a loop, and by Ray Tune. Part of bench/sweep.py."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shoal.testing.live import LiveServer, live_server

HERE = Path(__file__).parent
SLOTS = 2
KINDS = ("plain", "torch")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")


def measure(trials: int, repeats: int, ray: Path | None) -> dict[str, dict[str, float]]:
    """Kind of trial → who → seconds for all of them, the median of several."""
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    folder = tempfile.TemporaryDirectory(prefix="shoal-bench-")
    with folder as root, live_server(Path(root) / "home", slots=SLOTS) as server:
        code = Path(root) / "code"
        code.mkdir()
        (code / "trial.py").write_text((HERE / "sweep_trials.py").read_text())
        by_shoal(server, code, "plain", 2, "warm")
        for number in range(repeats):
            for kind in KINDS:
                times = found[kind]
                times.setdefault("shoal", []).append(by_shoal(server, code, kind, trials, f"{kind}-{number}"))
                times.setdefault("torchrun", []).append(by_torchrun(code, kind, trials))
                if ray is not None:
                    times.setdefault("ray tune", []).append(by_ray(ray, kind, trials))
                    times.setdefault("ray tune, actors reused", []).append(by_ray(ray, kind, trials, "--reuse"))
    return {kind: {who: statistics.median(values) for who, values in times.items()} for kind, times in found.items()}


def by_shoal(server: LiveServer, code: Path, kind: str, trials: int, name: str) -> float:
    """Return the seconds from the command to the result of the last trial."""
    began = time.monotonic()
    server.cli(
        "sweep", "run", name, "--param", f"x={','.join(map(str, range(trials)))}", "--parallel", str(SLOTS),
        "--metric", "eval/loss", "--dir", str(code), "--", "trial.py", kind, name, timeout=1200,
    )  # fmt: skip
    with server.client() as client:
        view = client.sweeps.wait(name, timeout_s=1200)
        seconds = time.monotonic() - began
        rows = list(client.sweeps.all_trials(name))
    states = {str(row.state) for row in rows}
    if view.status != "finished" or states != {"done"} or len(rows) != trials:
        raise RuntimeError(f"sweep {name} is {view.status} ({view.reason}); its {len(rows)} trials are {states}")
    if None in [row.result for row in rows]:
        raise RuntimeError(f"sweep {name}: a trial has no result")
    return seconds


def by_torchrun(code: Path, kind: str, trials: int) -> float:
    """Return the seconds for all trials, with as many at a time as there are slots."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")} | {"OMP_NUM_THREADS": "1"}

    def run(x: int) -> None:
        subprocess.run(
            [sys.executable, *TORCHRUN, "trial.py", kind, "loop", "--x", str(x)],
            cwd=code, env=env, check=True, capture_output=True,
        )  # fmt: skip

    began = time.monotonic()
    with ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(run, range(trials)))
    return time.monotonic() - began


def by_ray(python: Path, kind: str, trials: int, *options: str) -> float:
    """Return the seconds for all trials, without the start of Ray itself."""
    done = subprocess.run(
        [str(python), str(HERE / "sweep_ray.py"), kind, str(trials), *options], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"ray tune failed: {done.stderr[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    if len(told["losses"]) != trials:
        raise RuntimeError(f"ray tune has {len(told['losses'])} results of {trials}")
    return float(told["seconds"])
