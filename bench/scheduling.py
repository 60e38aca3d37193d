"""The queue: how long one scheduling pass takes, and how well the decision fills a pool.

    python bench/scheduling.py [--jobs 10000] [--rounds 7] [--json]

A pass is timed three ways: the decision alone on a pool that is full, partly free or empty, and a whole pass of the server's
scheduler over a real database. Growth is the exponent of time against queue length, from a quarter of --jobs to four times
as many, beside that of n log n; the upper half alone also shows what the processor's caches no longer hold. The makespan
part plays 216 tasks of known lengths through the same decision on pools of 1, 4 and 180 slots; the lower bound is the
largest of: all work spread evenly, the longest task, and what the tasks of 8 slots need on the machines that can hold them;
in whole rounds where all tasks are equally long.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.agent.devices.device import Device
from shoal.core.ids import new_id
from shoal.core.jobs import JobSpec
from shoal.core.schema import utcnow
from shoal.engines.base import AgentState, Machine
from shoal.server.context import Context
from shoal.server.models.jobs import Job
from shoal.server.scheduler.decide import MachineState, QueuedJob, QueueState, RunningJob, Share, decide
from shoal.server.scheduler.loop import Scheduler
from shoal.server.scheduler.simulate import play
from shoal.testing.server import IdleEngine, add_person, add_source, make_context

TARGET_PASS_MS = 50.0
TARGET_MODELS_MS = 100.0
TARGET_MAKESPAN = 1.05
TASKS = 216
SEEDS = 5
POOLS = {1: ([1], (1,)), 4: ([4], (1, 2)), 180: ([8] * 22 + [4], (1, 2, 8))}
LENGTHS: dict[str, Callable[[random.Random], float]] = {
    "equal": lambda rng: 3600.0,
    "uniform": lambda rng: rng.uniform(600, 7200),
    "exponential": lambda rng: 60 + rng.expovariate(1 / 3600),
    "lognormal": lambda rng: rng.lognormvariate(8, 0.8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = passes(options.jobs, options.rounds) | models(options.jobs, options.rounds) | makespans()
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        pass_ms = TARGET_MODELS_MS if name.startswith("models") else TARGET_PASS_MS
        goal = TARGET_MAKESPAN if name.startswith("makespan") else pass_ms if name.endswith("_ms") else None
        mark = "" if goal is None else f"   goal {goal:g}: {'met' if value <= goal else 'MISSED'}"
        print(f"{name:<42} {value:10.3f}{mark}")


def passes(jobs: int, rounds: int) -> dict[str, float]:
    figures = {}
    sizes = [jobs // 4, jobs, 4 * jobs]
    for free in ("full", "partly free", "empty"):
        times = [best(lambda s=seen: decide(s), rounds) for seen in (made_up(n, free) for n in sizes)]
        figures[f"decision, pool {free}, {jobs} jobs_ms"] = 1000 * times[1]
        figures[f"growth exponent, pool {free}"] = math.log(times[2] / times[0]) / math.log(sizes[2] / sizes[0])
        figures[f"its upper half, pool {free}"] = math.log(times[2] / times[1]) / math.log(sizes[2] / sizes[1])
    log = math.log
    figures["growth exponent of n log n"] = log(16 * log(sizes[2]) / log(sizes[0])) / log(16)
    figures[f"whole pass with database, {jobs} jobs_ms"] = 1000 * whole_pass(jobs, rounds)
    name = f"models, labels and topology, 1000 machines, read from the database and decided, {jobs} jobs_ms"
    figures[name] = 1000 * read_and_decide(jobs, rounds)
    return figures


def models(jobs: int, rounds: int) -> dict[str, float]:
    """1,000 machines of four models in ten racks, and jobs that ask for models, memory and labels.

    Half of the GPU machines have two NUMA nodes, a quarter four NVLink pairs; the others connect all GPUs alike.
    """
    rng, figures = random.Random(11), {}
    kinds = [("", None, "cpu")] + [(name, size * 10**9, "cuda") for name, size in
             (("H100 80GB HBM3", 85), ("A100-SXM4-40GB", 42), ("Tesla T4", 16))]  # fmt: skip
    for free in ("full", "partly free", "fragmented", "empty"):
        machines, running = [], []
        for number in range(1_000):
            model, memory, kind = rng.choice(kinds)
            used = {"full": 8, "empty": 0}.get(free, rng.choice((6, 7, 8)))
            if free == "fragmented":  # free slots of every machine are in two islands
                used = 4
            slots = [0, 1, 4, 5] if free == "fragmented" else range(used)
            nodes = {slot: (None, slot // 4) for slot in range(8)}
            pairs = {slot: (slot // 2, slot // 4) for slot in range(8)}
            machines.append(
                MachineState(
                    name=f"m{number:04}", slots=8, used=frozenset(slots), kind=kind, model=model, memory=memory,
                    places=(nodes, nodes, pairs, {})[number % 4] if kind == "cuda" else {},
                    labels=frozenset({f"rack={number % 10}"}),
                )
            )  # fmt: skip
            if used:
                running.append(
                    RunningJob(
                        job_id=f"r{number}", priority=0, slots={f"m{number:04}": used}, ends_in_s=rng.uniform(60, 9999)
                    )
                )
        base = made_up(jobs, "empty")
        wishes = [{}, {}, {"gpu": "H100"}, {"gpu": "A100"}, {"gpu_memory": 40 * 10**9}, {"device": "cpu"}]
        queue = [
            replace(
                job,
                labels=frozenset({f"rack={rng.randrange(10)}"}) if rng.random() < 0.2 else frozenset(),
                **rng.choice(wishes),
            )
            for job in base.queue
        ]
        view = replace(base, machines=machines, running=running, queue=queue)
        figures[f"models, labels and topology, 1000 machines, pool {free}_ms"] = 1000 * best(
            lambda s=view: decide(s), rounds
        )
    return figures


def best(work: Callable[[], object], rounds: int) -> float:
    """The least processor time of several rounds: what else the machine does is left out."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def made_up(jobs: int, free: str) -> QueueState:
    """100 machines of 8 slots, 20 workspaces with weights and quotas, jobs of many sizes."""
    rng = random.Random(7)
    machines, running = [], []
    for number in range(100):
        name = f"m{number:03}"
        used = {"full": 8, "empty": 0}.get(free, rng.choice((6, 7, 8)))
        machines.append(MachineState(name=name, slots=8, used=frozenset(range(used))))
        running += [
            RunningJob(
                job_id=f"{name}-{slot}",
                priority=rng.choice((0, 1)),
                slots={name: 1},
                workspace=f"w{rng.randrange(20)}",
                started=rng.uniform(0, 1000),
                ends_in_s=rng.uniform(60, 9999),
            )
            for slot in range(used)
        ]
    queue = [
        QueuedJob(
            job_id=f"j{i:06}",
            priority=rng.choice((0, 0, 0, 1, 5)),
            order=(float(i), f"j{i:06}"),
            min_nodes=rng.choice((1, 1, 1, 2, 4)),
            max_nodes=4,
            accels=rng.choice((1, 2, 4, 8)),
            workspace=f"w{rng.randrange(20)}",
            since=float(i),
            limit_s=rng.choice((None, 600.0, 3600.0)),
            exclude=frozenset({"m001"}) if rng.random() < 0.05 else frozenset(),
        )
        for i in range(jobs)
    ]
    shares = {
        f"w{k}": Share(weight=1 + k % 3, quota=200 if k % 4 == 0 else None, used_s=rng.uniform(0, 1e6))
        for k in range(20)
    }
    return QueueState(now=float(jobs), machines=machines, queue=queue, running=running, shares=shares)


class StillEngine(IdleEngine):
    """Sixteen machines whose agents are alive and do nothing."""

    def capacity(self) -> list[Machine]:
        return [Machine(name=f"m{i:02}", kind="cpu", slots=8) for i in range(16)]

    def status(self, attempt_id: str, node: int) -> AgentState:
        return AgentState.ALIVE


class GpuEngine(StillEngine):
    """1,000 machines in ten racks, most with 8 GPUs of one of three models in two NUMA nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._machines = [_gpu_machine(number) for number in range(1_000)]

    def capacity(self) -> list[Machine]:
        return list(self._machines)


def _gpu_machine(number: int) -> Machine:
    name, labels = f"m{number:04}", {"rack": str(number % 10)}
    if number % 4 == 0:
        return Machine(name=name, kind="cpu", slots=8, labels=labels)
    model, memory = (("H100 80GB HBM3", 85), ("A100-SXM4-40GB", 42), ("Tesla T4", 16))[number % 3]
    gpus = tuple(
        Device(kind="cuda", index=i, uuid=f"{name}-{i}", model=model, memory=memory * 10**9, numa=i // 4)
        for i in range(8)
    )
    return Machine(name=name, kind="cuda", slots=8, labels=labels, inventory=gpus)


WISHES: tuple[dict[str, Any], ...] = (
    {}, {"gpu": "H100"}, {"gpu": "A100"}, {"gpu_memory_gb": 40.0}, {"device": "cpu"}, {"labels": {"rack": "3"}},
)  # fmt: skip


def whole_pass(jobs: int, rounds: int) -> float:
    """Return the seconds of a pass of the server's scheduler over a queue in the database, with every slot in use."""
    with queue_in_database(jobs, StillEngine()) as ctx:
        scheduler = Scheduler(ctx, "http://nowhere")
        scheduler.pass_once()  # it fills the pool, and reads every job once
        return best(scheduler.pass_once, rounds)


def read_and_decide(jobs: int, rounds: int) -> float:
    """Return the seconds in which the queue is read from the database and decided, with models and labels, on empty machines."""
    with queue_in_database(jobs, GpuEngine(), WISHES) as ctx:

        def work() -> None:
            with ctx.db.read() as session:
                decide(ctx.queue.read(session, ctx.engine.capacity(), ctx.settings))

        work()  # reads every job once
        return best(work, rounds)


@contextmanager
def queue_in_database(jobs: int, engine: StillEngine, wishes: Sequence[dict[str, Any]] = ({},)) -> Iterator[Context]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as home:
        ctx = make_context(Path(home), engine=engine)
        person = add_person(ctx, "a@example.org")
        source = add_source(ctx, person)

        def row(number: int) -> Job:
            name = f"j{number}"
            spec = JobSpec(
                name=name,
                entry=["train.py"],
                source_id=source,
                accels=4,
                priority=number % 3,
                **wishes[number % len(wishes)],
            )
            return Job(id=new_id("job"), workspace_id=person.workspace_id, name=name, spec=spec.model_dump(mode="json"),
                       source_id=source, inputs=[], created_by=person.email, state="queued", priority=spec.priority,
                       created_at=utcnow())  # fmt: skip

        ctx.db.write(lambda session: session.add_all([row(number) for number in range(jobs)]))
        yield ctx
        ctx.db.close()


def makespans() -> dict[str, float]:
    figures = {}
    for slots, (pool, widths) in POOLS.items():
        machines = [MachineState(name=f"m{i:02}", slots=n) for i, n in enumerate(pool)]
        for name, length in LENGTHS.items():
            ratios = []
            for seed in range(SEEDS):
                rng = random.Random(seed)
                tasks = [(rng.choice(widths), length(rng)) for _ in range(TASKS)]
                ratios.append(makespan(machines, tasks) / lower_bound(machines, tasks))
            figures[f"makespan / bound, {slots} slots, {name}, worst"] = max(ratios)
    return figures


def makespan(machines: Sequence[MachineState], tasks: Sequence[tuple[int, float]]) -> float:
    """All tasks as one batch, through the scheduler's own decision."""
    queue = [
        QueuedJob(
            job_id=f"t{i:03}",
            priority=0,
            order=(0.0, "batch", -length, f"t{i:03}"),
            min_nodes=1,
            max_nodes=1,
            accels=width,
            limit_s=length,
            expected_s=length,
        )
        for i, (width, length) in enumerate(tasks)
    ]
    played = play(QueueState(now=0.0, machines=machines, queue=queue), {j.job_id: j.expected_s or 0.0 for j in queue})
    return max(played.ends.values())


def lower_bound(machines: Sequence[MachineState], tasks: Sequence[tuple[int, float]]) -> float:
    bounds = [max(length for _, length in tasks)]
    for least in {width for width, _ in tasks}:
        wide = sorted((length for width, length in tasks if width == least), reverse=True)
        bounds.append(
            sum(w * length for w, length in tasks if w >= least) / sum(m.slots for m in machines if m.slots >= least)
        )
        at_once = sum(m.slots // least for m in machines)
        bounds.append(sum(wide) / at_once)
        if len(wide) > at_once:  # two of the longest at_once + 1 must follow each other
            bounds.append(wide[at_once - 1] + wide[at_once])
    shortest = min(length for _, length in tasks)
    if shortest == max(length for _, length in tasks):  # then all that runs, runs in whole rounds
        return math.ceil(max(bounds) / shortest - 1e-9) * shortest
    return max(bounds)


if __name__ == "__main__":
    main()
