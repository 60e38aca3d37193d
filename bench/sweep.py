"""Sweeps, pool and queue beside others and beside what is possible: `python bench/sweep.py [--only PART…] [--ray PYTHON] [--json]`.

queue     216 tasks of known lengths on pools of 1, 4 and 180 slots, and passes over 10,000 queued jobs (bench/scheduling.py)
overhead  what choosing and keeping a trial costs, beside Optuna with its journal storage (bench/sweep_overhead.py)
trials    64 trivial real trials on two slots, beside torchrun in a loop and Ray Tune (bench/sweep_real.py)
search    how soon search by asha is as good as a whole grid (bench/search.py)

Ray Tune takes part if `--ray` names an interpreter that has it: `pip install torch==2.13.0 'ray[tune]'` in a virtual environment.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

PARTS = ("queue", "overhead", "trials", "search")


class Line(NamedTuple):
    ok: bool
    text: str


def main() -> int:
    args = _arguments()
    every: list[Line] = []
    for part in args.only or PARTS:
        lines = {"queue": queue, "overhead": overhead, "trials": trials, "search": search}[part](args)
        every += lines
        if not args.json:
            print("\n".join(f"{'PASS' if line.ok else 'MISS'}  {line.text}" for line in lines), flush=True)
    if args.json:
        print(json.dumps([line._asdict() for line in every], indent=1))
    return 0 if all(line.ok for line in every) else 1


def queue(args: argparse.Namespace) -> list[Line]:
    from scheduling import TARGET_MAKESPAN, TARGET_PASS_MS, makespans, passes

    lines = []
    for name, ratio in makespans().items():
        lines.append(Line(ratio <= TARGET_MAKESPAN, f"{name} of the seeds: {ratio:.3f}, at most {TARGET_MAKESPAN}"))
    figures = passes(10_000, args.rounds)
    limit = figures["growth exponent of n log n"]
    for name, value in figures.items():
        if name.endswith("_ms"):
            lines.append(
                Line(value <= TARGET_PASS_MS, f"{name.removesuffix('_ms')}: {value:.1f} ms, at most {TARGET_PASS_MS:g}")
            )
        elif name.startswith("growth exponent, "):
            lines.append(Line(value <= limit + 0.02, f"{name}: {value:.3f}, n log n has {limit:.3f}"))
    return lines


def overhead(args: argparse.Namespace) -> list[Line]:
    from sweep_overhead import measure

    lines = []
    for trials, found in measure((64, 500), args.rounds).items():
        ms = {who: seconds * 1e3 for who, seconds in found.items()}
        theirs = f"Optuna's journal {ms['optuna']:.2f} ms"
        added = ms["sweep"] - ms["job"]
        lines.append(
            Line(ms["search"] <= ms["optuna"], f"search of {trials} trials: {ms['search']:.2f} ms each, {theirs}")
        )
        text = f"what a sweep of {trials} trials adds to a job: {added:.2f} ms ({ms['sweep']:.2f} for both), {theirs}"
        lines.append(Line(added <= ms["optuna"], text))
    return lines


def trials(args: argparse.Namespace) -> list[Line]:
    from sweep_real import measure

    lines = []
    for kind, seconds in measure(args.trials, args.repeats, args.ray).items():
        ours = seconds["shoal"]
        for who, theirs in seconds.items():
            if who != "shoal":
                text = f"{args.trials} trials ({kind}): {ours:.1f} s, {who} {theirs:.1f} s, {theirs / ours:.1f} times as long"
                lines.append(Line(ours < theirs, text))
    return lines


def search(args: argparse.Namespace) -> list[Line]:
    from search import GOAL, describe, measure

    found = measure(args.seeds)
    return [Line(row.median <= GOAL, describe(row)) for row in found]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1, help="of the real trials")
    parser.add_argument("--rounds", type=int, default=5, help="of what takes milliseconds")
    parser.add_argument("--seeds", type=int, default=5, help="of each search")
    parser.add_argument("--ray", type=Path, metavar="PYTHON", help="an interpreter that has Ray Tune")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
