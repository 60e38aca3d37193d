"""Share of a grid's work after which a search by asha (TPE with early stopping) is as good as the whole grid: `python bench/search.py [--seeds 5] [--ranges]`.

Real trainings (bench/search_problems.py). First the grid, every point to its end; then the search among the same values, with the
defaults a sweep has, four trials at a time taking turns. The result is the share of the grid's training steps after which
one of its trials had a loss as good as the best of the grid. Goal: a third, in the median of the seeds. With --ranges, the
ranges that contain these values are searched too, for comparison: there the grid's best point is one of infinitely many.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from search_problems import PROBLEMS, REPORTS, Problem, Values, train

from shoal.core.jobs import JobSpec
from shoal.core.sweeps import Axis, Between, Choice, SweepSpec, TrialState
from shoal.tune.curve import Curve
from shoal.tune.prune import RungResults, Rungs
from shoal.tune.search import Searcher, Tried

GOAL = 1 / 3
PARALLEL = 4
JOB = JobSpec(name="search", entry=["train.py"], source_id="none")


class Trainings:
    """Each is done once: the same values give the same losses."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self._known: dict[tuple[float, ...], list[float]] = {}
        self._going: dict[tuple[float, ...], Iterator[float]] = {}

    def loss(self, values: Values, report: int) -> float:
        key = tuple(values[name] for name in self.problem.axes)
        known = self._known.setdefault(key, [])
        going = self._going.setdefault(key, train(self.problem, values))
        while len(known) <= report:
            known.append(next(going))
        return known[report]


class Row(NamedTuple):
    problem: str
    kind: str
    shares: list[float]
    """Share of the grid's steps for each seed."""

    @property
    def median(self) -> float:
        return statistics.median(self.shares)


def main() -> int:
    args = _arguments()
    rows = []
    for row in measure(args.seeds, args.only or list(PROBLEMS), is_ranges_too=args.ranges):
        rows.append(row)
        if not args.json:
            mark = "    " if row.kind == "ranges" else "PASS" if row.median <= GOAL else "MISS"
            print(f"{mark}  {describe(row)}", flush=True)
    if args.json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
    return 0 if all(row.median <= GOAL for row in rows if row.kind == "values") else 1


def measure(seeds: int, names: Sequence[str] = tuple(PROBLEMS), *, is_ranges_too: bool = False) -> Iterator[Row]:
    torch.set_num_threads(1)
    for name in names:
        trainings = Trainings(PROBLEMS[name])
        best = best_of_grid(trainings)
        for kind in ("values", "ranges") if is_ranges_too else ("values",):
            yield Row(name, kind, [share_needed(trainings, best, kind, seed) for seed in range(seeds)])


def describe(row: Row) -> str:
    within = sum(share <= GOAL for share in row.shares)
    each = " ".join(f"{share:.0%}" if share < float("inf") else ">50%" for share in sorted(row.shares))
    median = f"{row.median:.0%}" if row.median < float("inf") else "more than half"
    return (
        f"{row.problem}, {row.kind}: as good as the grid after {median} of its steps; "
        f"{within} of {len(row.shares)} within a third ({each})"
    )


def best_of_grid(trainings: Trainings) -> float:
    axes = trainings.problem.axes
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return min(trainings.loss(point, report) for point in points for report in range(REPORTS))


def share_needed(trainings: Trainings, best: float, kind: str, seed: int, most: float = 0.5) -> float:
    """Return the share of the grid's steps until a trial is as good as `best`; infinity if `most` of them are not enough."""
    problem = trainings.problem
    sweep = Sweep(SweepSpec(name="s", job=JOB, space=space(problem, kind), search="asha", trials=100_000, seed=seed))
    whole = problem.grid_size * REPORTS
    for made, loss in enumerate(sweep.run(trainings), 1):
        if loss <= best:
            return made / whole
        if made >= most * whole:
            break
    return float("inf")


class Sweep:
    """Sweep as the server runs it, with trials that take turns."""

    def __init__(self, spec: SweepSpec):
        self._searcher = Searcher(spec)
        self._board = RungResults(Rungs(spec.first_rung, spec.factor), spec.direction)
        self._running: dict[int, Tried] = {}
        self._next = 0

    def run(self, trainings: Trainings) -> Iterator[float]:
        """Every report there is."""
        while self._fill():
            for number, trial in list(self._running.items()):
                if number not in self._running:
                    continue
                loss = trainings.loss(trial.params, len(trial.values))
                trial.values = [*trial.values, loss]
                self._heard(trial)
                yield loss

    def _fill(self) -> bool:
        while len(self._running) < PARALLEL and (params := self._searcher.ask(self._next)) is not None:
            self._running[self._next] = Tried(self._next, params, state=TrialState.RUNNING)
            self._searcher.tell(self._running[self._next])
            self._next += 1
        return bool(self._running)

    def _heard(self, trial: Tried) -> None:
        self._board.add(trial.number, Curve.of(trial.values, "min"))
        if len(trial.values) == REPORTS:
            self._over(trial, TrialState.DONE)
        else:
            self._searcher.tell(trial)
        for other in [t for n, t in self._running.items() if self._board.loss(n) is not None]:
            self._over(other, TrialState.PRUNED)

    def _over(self, trial: Tried, state: TrialState) -> None:
        trial.state, trial.result = state, min(trial.values)
        del self._running[trial.number]
        self._searcher.tell(trial)


def space(problem: Problem, kind: str) -> dict[str, Axis]:
    if kind == "values":
        return {name: Choice(values=list(values)) for name, values in problem.axes.items()}
    return {
        name: Between(
            low=min(values),
            high=max(values),
            log=name in problem.logs,
            whole=all(isinstance(v, int) for v in values),
        )
        for name, values in problem.axes.items()
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=sorted(PROBLEMS))
    parser.add_argument("--ranges", action="store_true", help="also in the ranges the values lie in")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
