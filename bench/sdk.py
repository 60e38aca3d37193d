"""Time that logging and frameworks add to a training step: `python bench/sdk.py [--json] [--repeats 3] [--steps 1000]`.

Every candidate runs a loop of steps that take about 0.2 ms (and 10 ms) in a fresh process, interleaved with the others;
what it adds per step is its median step less the bare loop's of the same round. Only what is installed takes part.
`--saving` measures what a checkpoint every 50 steps costs instead.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sdk_frameworks

LOG = Callable[[int, float, float], None]
NEEDS = {
    "shoal": "shoal",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "accelerate": "accelerate",
    "fabric": "lightning_fabric",
    "lightning": "pytorch_lightning",
    "hf trainer": "transformers",
}


def main() -> None:
    args = _arguments()
    if args.inside:
        print(json.dumps(INSIDE[args.inside](args)))
        return
    print(json.dumps(_saving(args)) if args.saving else _compare(args))


def _compare(args: argparse.Namespace) -> str:
    wanted = args.only or list(NEEDS)
    names = ["bare", *(n for n, module in NEEDS.items() if n in wanted and importlib.util.find_spec(module))]
    rounds: dict[str, list[dict[str, float]]] = {n: [] for n in names}
    for _ in range(args.repeats):
        for name in names:
            try:
                rounds[name].append(_in_process(name, args))
            except subprocess.CalledProcessError as error:
                print(f"{name}: {error.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    found = {n: _summary(r, rounds["bare"]) for n, r in rounds.items() if n != "bare" and r}
    if args.json:
        return json.dumps(found, indent=1)
    ours = found.get("shoal", {})
    lines = [f"{'':14}{'added µs/step':>15}{'one call µs':>13}{'share of 10 ms':>16}{'times ours':>12}"]
    for name, row in sorted(found.items(), key=lambda item: item[1]["added_us"]):
        call = f"{row['call_us']:13.1f}" if "call_us" in row else f"{'–':>13}"
        ratio = row["added_us"] / max(0.1, ours.get("added_us", 0.1))
        lines.append(f"{name:14}{row['added_us']:15.1f}{call}{row['share_10ms']:15.2%}{ratio:12.1f}")
    return "\n".join(lines)


def _summary(rounds: list[dict[str, float]], bare: list[dict[str, float]]) -> dict[str, float]:
    pairs = list(zip(rounds, bare, strict=False))
    row = {"added_us": statistics.median(mine["step_us"] - base["step_us"] for mine, base in pairs)}
    if "call_us" in rounds[0]:
        row["call_us"] = statistics.median(r["call_us"] for r in rounds)
        row["slow_call_us"] = statistics.median(r["slow_call_us"] for r in rounds)
    row["share_10ms"] = row.get("slow_call_us", max(0.0, row["added_us"])) / 10_000
    return row


def _in_process(name: str, args: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        env = {
            **os.environ,
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        env |= {
            "TRACKIO_DIR": folder,
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
            "CUDA_VISIBLE_DEVICES": "",
        }
        env |= {"MLFLOW_ALLOW_FILE_STORE": "true", "GIT_PYTHON_REFRESH": "quiet", "HOME": folder}
        argv = [sys.executable, str(Path(__file__).resolve()), "--inside", name, "--steps", str(args.steps)]
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=300)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _work() -> Callable[[], float]:
    """A step of about 0.2 ms of Python and torch: a tiny network with its optimizer."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(32, 64)

    def step() -> float:
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def _timed(args: argparse.Namespace, log: LOG | None) -> dict[str, float]:
    step = _work()
    whole, calls = [], []
    for i in range(args.steps + 100):
        start = time.perf_counter()
        loss = step()
        before = time.perf_counter()
        if log is not None:
            log(i, loss, 1e-3)
        end = time.perf_counter()
        whole.append(end - start)
        calls.append(end - before)
    found = {"step_us": statistics.median(whole[100:]) * 1e6, "mean_us": statistics.fmean(whole[100:]) * 1e6}
    if log is not None:
        found["call_us"] = statistics.median(calls[100:]) * 1e6
        found["slow_call_us"] = _between_slow_steps(log) * 1e6
    return found


def _between_slow_steps(log: LOG) -> float:
    """The call when 10 ms of work lie between one and the next, and no cache is warm any more."""
    import torch

    waste, calls = torch.randn(1 << 20), []
    for i in range(100):
        until = time.perf_counter() + 0.01
        while time.perf_counter() < until:
            waste.mul_(1.0)
        start = time.perf_counter()
        log(10**6 + i, 0.5, 1e-3)
        calls.append(time.perf_counter() - start)
    return statistics.median(calls)


def _bare(args: argparse.Namespace) -> dict[str, float]:
    return _timed(args, None)


def _shoal(args: argparse.Namespace) -> dict[str, float]:
    import shoal

    with shoal.init("bench", max_steps=args.steps + 100) as run:
        return _timed(args, lambda i, loss, lr: run.step(loss=loss, lr=lr))


def _tensorboard(args: argparse.Namespace) -> dict[str, float]:
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(log_dir="tb")

    def log(i: int, loss: float, lr: float) -> None:
        writer.add_scalar("loss", loss, i)
        writer.add_scalar("lr", lr, i)

    return _timed(args, log)


def _wandb(args: argparse.Namespace) -> dict[str, float]:
    import wandb

    run: Any = wandb.init(project="bench")
    found = _timed(args, lambda i, loss, lr: run.log({"loss": loss, "lr": lr}, step=i))
    run.finish()
    return found


def _mlflow(args: argparse.Namespace) -> dict[str, float]:
    import mlflow

    mlflow.set_tracking_uri("file:./mlruns")
    with mlflow.start_run():
        return _timed(args, lambda i, loss, lr: mlflow.log_metrics({"loss": loss, "lr": lr}, step=i))


def _trackio(args: argparse.Namespace) -> dict[str, float]:
    import trackio

    trackio.init(project="bench")
    found = _timed(args, lambda i, loss, lr: trackio.log({"loss": loss, "lr": lr}, step=i))
    os.write(1, (json.dumps(found) + "\n").encode())
    os._exit(0)


def _framework(args: argparse.Namespace, loop: Callable[[int], float]) -> dict[str, float]:
    """The same loop through a framework, loader included, less the loop with torch's own."""
    plain, wrapped = sdk_frameworks.plain(args.steps), loop(args.steps)
    return {"step_us": _timed(args, None)["step_us"] + wrapped - plain}


def _saving(args: argparse.Namespace) -> dict[str, float]:
    """Mean step with a checkpoint every 50 steps beside the same without, interleaved."""
    found: dict[str, list[float]] = {"not saving": [], "saving": []}
    for _ in range(args.repeats):
        for name, times in found.items():
            times.append(_in_process(name, args)["step_us"])
    plain, saving = (statistics.median(found[n]) for n in ("not saving", "saving"))
    return {"step_us": plain, "saving_step_us": saving, "slower_by": saving / plain - 1}


def _saved_loop(args: argparse.Namespace, every: int | None) -> dict[str, float]:
    import torch

    import shoal

    torch.set_num_threads(1)
    with shoal.init("bench", seed=0, checkpoint_every=every, checkpoint_every_s=None) as run:
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        loader: Any = torch.utils.data.DataLoader([torch.randn(512)] * 1280, batch_size=128)
        model, optimizer, loader = run.prepare(model, optimizer, loader)
        start = 0.0
        for batch in run.loop(loader, max_steps=args.steps):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step(loss=loss)
            if run.global_step == 10:
                start = time.perf_counter()
        return {"step_us": (time.perf_counter() - start) / (args.steps - 10) * 1e6}


INSIDE: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "bare": _bare,
    "shoal": _shoal,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
    "accelerate": lambda args: _framework(args, sdk_frameworks.accelerate),
    "fabric": lambda args: _framework(args, sdk_frameworks.fabric),
    "lightning": lambda args: _framework(args, sdk_frameworks.lightning),
    "hf trainer": lambda args: _framework(args, sdk_frameworks.hf_trainer),
    "not saving": lambda args: _saved_loop(args, None),
    "saving": lambda args: _saved_loop(args, 50),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=sorted(NEEDS), help="some of them, for a quick look")
    parser.add_argument("--saving", action="store_true", help="the cost of a checkpoint every 50 steps instead")
    parser.add_argument("--inside", choices=sorted(INSIDE), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
