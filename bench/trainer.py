"""Our training loop beside a raw DDP loop and other frameworks': `python bench/trainer.py [--repeats 3] [--json]`.

Two workers on gloo train the same 10 M parameters with AdamW (fused, as is the default of ours and of Hugging Face's), clipping and
a falling learning rate, one thread each. All
candidates are started and wait; then each in turn does a block of steps between two blocks of the raw loop, and is compared with
those: the machine's moods last longer than that. The start (from spawning both workers to the end of the first step) is timed
one candidate at a time. Only what is installed takes part. The original TopSpin is taken from where it was put by
`pip install --no-deps --target DIR TopSpin==1.2.1 pytz`, given as `--topspin DIR`: by its name one would find ours.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

NEEDS = {
    "raw ddp": "torch",
    "shoal": "shoal",
    "accelerate": "accelerate",
    "fabric": "lightning_fabric",
    "hf trainer": "transformers",
    "lightning": "pytorch_lightning",
}
TOPSPIN = "topspin"
RAW, OURS = "raw ddp", "shoal"
MOST = 1.02
"""Largest allowed ratio to a step of the raw loop."""
NOISE = 0.01
"""Difference that does not count as slower."""
WORKERS = 2
WORKER = Path(__file__).with_name("trainer_worker.py")
PATIENCE_S = 300.0


class Candidate:
    """Two workers that stop after each block of steps and wait for the command to continue."""

    def __init__(self, name: str, folder: Path, steps: int):
        self.name = name
        port = _free_port()
        started = time.time()
        self._workers = [
            subprocess.Popen(
                [sys.executable, str(WORKER), name, str(steps)],
                cwd=folder,
                env=_env(rank, port, folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(folder / f"{rank}.err").open("w"),
                text=True,
            )
            for rank in range(WORKERS)
        ]
        try:
            self.start_s = max(self._answer(w, "first") for w in self._workers) - started
        except RuntimeError as error:
            self.end()
            told = (folder / "0.err").read_text().strip().splitlines() or [""]
            raise RuntimeError(f"{error}: {told[-1][:300]}") from None

    def block(self) -> float:
        """Seconds of a step: the median of the slower worker's."""
        for worker in self._workers:
            _pipe(worker.stdin).write("go\n")
            _pipe(worker.stdin).flush()
        return max(self._answer(worker, "step_s") for worker in self._workers)

    def end(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    pipe.close()

    def _answer(self, worker: subprocess.Popen[str], key: str) -> float:
        line = _pipe(worker.stdout).readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {worker.wait(PATIENCE_S)}")
        return float(json.loads(line)[key])


def main() -> int:
    args = _arguments()
    wanted = [n for n in NEEDS if n in (RAW, OURS) or n in (args.only or NEEDS)]
    names = [n for n in wanted if importlib.util.find_spec(NEEDS[n])]
    if args.topspin is not None:
        os.environ["BENCH_TOPSPIN"] = str(args.topspin.resolve())
        names.append(TOPSPIN)
    starts: dict[str, list[float]] = {n: [] for n in names}
    steps: dict[str, list[float]] = {n: [] for n in names}
    ratios: dict[str, list[float]] = {n: [] for n in names if n != RAW}
    for number in range(args.repeats):
        _round(names if number % 2 == 0 else names[::-1], args, starts, steps, ratios)
    found = {
        n: {
            "start_s": statistics.median(starts[n]),
            "step_ms": statistics.median(steps[n]) * 1e3,
            "ratio": statistics.median(ratios[n]) if n in ratios else 1.0,
            "error": _error(ratios.get(n, [])),
        }
        for n in names
        if steps[n]
    }
    verdicts = _verdicts(found)
    if args.json:
        print(json.dumps({"found": found, "verdicts": verdicts}, indent=1))
    else:
        print(_table(found))
        print("\n".join(f"{'PASS' if ok else 'MISS'}  {text}" for text, ok in verdicts.items()))
        for name in (*NEEDS, TOPSPIN):
            if name not in found:
                print(f"absent  {name}")
    return 0 if all(verdicts.values()) else 1


def _round(
    names: list[str],
    args: argparse.Namespace,
    starts: dict[str, list[float]],
    steps: dict[str, list[float]],
    ratios: dict[str, list[float]],
) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-bench-")))
        running: dict[str, Candidate] = {}
        for name in names:
            place = folder / name.replace(" ", "-")
            place.mkdir()
            try:
                running[name] = Candidate(name, place, args.steps)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                continue
            stack.callback(running[name].end)
            starts[name].append(running[name].start_s)
        for candidate in running.values():
            candidate.block()
        for _ in range(args.blocks):
            before = running[RAW].block()
            steps[RAW].append(before)
            for name in [n for n in names if n != RAW and n in running]:
                mine, after = running[name].block(), running[RAW].block()
                steps[name].append(mine)
                steps[RAW].append(after)
                ratios[name].append(2 * mine / (before + after))
                before = after


def _verdicts(found: dict[str, dict[str, float]]) -> dict[str, bool]:
    ours = found.get(OURS)
    if ours is None:
        return {f"{OURS} did not run": False}
    told = {f"step at most {MOST} times the raw loop's: {ours['ratio']:.3f}": ours["ratio"] <= MOST}
    for name, row in found.items():
        if name not in (RAW, OURS):
            slower = ours["ratio"] / row["ratio"] - 1
            told[f"step not behind {name}: {slower:+.1%}"] = slower <= NOISE
            told[f"start not behind {name}: {ours['start_s']:.1f} s and {row['start_s']:.1f} s"] = (
                ours["start_s"] <= row["start_s"]
            )
    return told


def _table(found: dict[str, dict[str, float]]) -> str:
    lines = [f"{'':14}{'step ms':>10}{'times raw':>12}{'± error':>10}{'start s':>10}"]
    for name, row in sorted(found.items(), key=lambda item: item[1]["ratio"]):
        error = "–" if name == RAW else f"{row['error']:.3f}"
        lines.append(f"{name:14}{row['step_ms']:10.1f}{row['ratio']:12.3f}{error:>10}{row['start_s']:10.2f}")
    return "\n".join(lines)


def _error(values: list[float]) -> float:
    """Return the approximate standard error of the median: that of the mean, times 1.25."""
    return 1.25 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _env(rank: int, port: int, folder: Path) -> dict[str, str]:
    """Return the environment as torchrun sets it, with one thread each and without network access of libraries."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "ROLE_RANK": rank, "MASTER_PORT": port}
    sizes = {"WORLD_SIZE": WORKERS, "LOCAL_WORLD_SIZE": WORKERS, "GROUP_WORLD_SIZE": 1, "ROLE_WORLD_SIZE": WORKERS}
    return {
        **kept,
        **{k: str(v) for k, v in (ranks | sizes).items()},
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHELASTIC_RUN_ID": f"bench-{port}",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "SHOAL_HOME": str(folder / "home"),
        "HOME": str(folder),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pipe(pipe: Any) -> Any:
    assert pipe is not None
    return pipe


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="how often all are started")
    parser.add_argument("--blocks", type=int, default=6, help="blocks of each, per repeat")
    parser.add_argument("--steps", type=int, default=20, help="steps of a block")
    parser.add_argument("--only", nargs="+", choices=sorted(NEEDS), help="these beside ours and the raw loop")
    parser.add_argument("--topspin", type=Path, metavar="DIR", help="where the original is installed")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
