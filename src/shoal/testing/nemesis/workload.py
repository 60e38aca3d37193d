"""Clients that work while things go wrong: jobs, sweeps, datasets, keys, stops, deletions, and reads of all kinds."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.client import Client
from shoal.core.errors import AuthError, NotFound, ShoalError
from shoal.core.jobs import JobSpec
from shoal.core.sweeps import SweepSpec
from shoal.store.pack import pack_files, pack_tree
from shoal.testing.nemesis.history import History, Operation
from shoal.testing.nemesis.world import World

COUNT = """
import os, sys, time
attempt, rank = os.environ["SHOAL_ATTEMPT"], os.environ.get("RANK", "0")
steps, pause = int(sys.argv[1]), float(sys.argv[2])
hangs = len(sys.argv) > 3 and sys.argv[3] == "hang" and attempt == "1"
import shoal
run = shoal.init()
witness = os.open(os.path.join(os.environ["WITNESS"], os.environ["SHOAL_JOB_ID"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
node = os.environ.get("GROUP_RANK", "0")
for step in range(1, steps + 1):
    if hangs and step > 3:
        time.sleep(600)
    print(f"step {step}/{steps}", flush=True)
    run.step(loss=1 / step)
    # From here on the line and the point may be lost by the machine only.
    os.write(witness, f"{attempt} {node} {rank} {step} {time.time()}\\n".encode())
    time.sleep(pause)
run.finish()
"""
TRIAL = """
import argparse, shoal
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
x = parser.parse_args().x
shoal.init().evaluate({"eval/loss": x * x})
"""
JOB_EVERY_S = 3.0


class Workload:
    """Threads of clients; `start`, then `stop` when no more operations should begin."""

    def __init__(self, world: World, history: History, seed: int, *, pace: float = 1.0):
        self._world, self._history, self._seed, self._pace = world, history, seed, pace
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.source_id = ""
        self.revoked: list[str] = []
        """Keys whose revocation was acknowledged; none may ever work again."""

    def start(self) -> None:
        folder = self._world.folder / "code"
        folder.mkdir()
        (folder / "count.py").write_text(COUNT)
        (folder / "trial.py").write_text(TRIAL)
        with self._world.connect() as client:
            self.source_id = client.sources.send(pack_tree(folder))[0].id
        clients: list[tuple[Callable[[Client, random.Random, int], None], float]] = [
            (self._submit, JOB_EVERY_S),
            (self._disturb, 2.5),
            (self._sweep, 25.0),
            (self._push, 4.0),
            (self._keys, 2.0),
            (self._read, 0.5),
        ]
        for number, (act, every_s) in enumerate(clients):
            rng = random.Random(f"{self._seed}/{number}")
            name = f"nemesis-{act.__name__.strip('_')}"
            thread = threading.Thread(target=self._run, args=(act, every_s, rng), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def spec(
        self, name: str, steps: int, pause: float, *, nodes: int = 1, accels: int = 1, hang: bool = False
    ) -> JobSpec:
        return JobSpec(
            name=name,
            entry=["count.py", str(steps), str(pause), *(["hang"] if hang else [])],
            source_id=self.source_id,
            min_nodes=nodes,
            max_nodes=nodes,
            accels=accels,
            max_restarts=50,
            stall_timeout_s=20 if hang else None,
            env={"WITNESS": str(self._world.witness)},
        )

    def _run(self, act: Callable[[Client, random.Random, int], None], every_s: float, rng: random.Random) -> None:
        number = 0
        while not self._stopping.wait(every_s / self._pace * rng.uniform(0.5, 1.5)):
            number += 1
            try:
                with self._world.connect() as client:
                    act(client, rng, number)
            except (ShoalError, OSError):
                continue  # the server is away; operations that had begun are in the history
            except Exception as error:
                self._history.note("client", act.__name__, f"{type(error).__name__}: {error}")
                raise

    def _submit(self, client: Client, rng: random.Random, number: int) -> None:
        steps, pause = rng.randint(20, 120), rng.choice([0.02, 0.05, 0.1])
        nodes, accels = rng.choice([(1, 1), (1, 1), (1, 1), (2, 1), (1, 2)])
        spec = self.spec(f"job-{number}", steps, pause, nodes=nodes, accels=accels)
        with self._history.operation("submit", spec.name, steps=steps, nodes=nodes, accels=accels) as op:
            self._answer(op, client.jobs.create(spec).id)

    def _disturb(self, client: Client, rng: random.Random, number: int) -> None:
        """Stop, resume or delete a job, in whatever phase it is."""
        jobs = [job for job in client.jobs.list(limit=30) if job.kind == "job" and job.name.startswith("job-")]
        if not jobs:
            return
        job = rng.choice(jobs)
        act = rng.choice(["stop", "resume", "delete", "race"] if rng.random() < 0.5 else ["none"])
        if act == "race":
            self.race(job.name)
        elif act != "none":
            with self._history.operation(act, job.name, id=job.id):
                {"stop": client.jobs.stop, "resume": client.jobs.resume, "delete": client.jobs.delete}[act](job.id)

    def race(self, job: str) -> None:
        """Stop and resume one job from several clients at the same moment."""
        ready = threading.Barrier(6)

        def one(kind: str) -> None:
            with suppress(ShoalError, OSError), self._world.connect() as client:
                with suppress(threading.BrokenBarrierError):
                    ready.wait(5)
                with self._history.operation(kind, job, race=True):
                    (client.jobs.stop if kind == "stop" else client.jobs.resume)(job)

        threads = [threading.Thread(target=one, args=(k,), daemon=True) for k in ("stop", "resume") * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _sweep(self, client: Client, rng: random.Random, number: int) -> None:
        job = JobSpec(name=f"sweep-{number}", entry=["trial.py"], source_id=self.source_id, max_restarts=50)
        space = {"x": {"kind": "choice", "values": [0.5, 1.0, 2.0]}}
        spec = SweepSpec.model_validate({"name": f"sweep-{number}", "job": job, "space": space, "parallel": 2})
        with self._history.operation("sweep", spec.name, trials=3) as op:
            self._answer(op, client.sweeps.create(spec).id)

    def _push(self, client: Client, rng: random.Random, number: int) -> None:
        name, data = f"data-{number}", rng.randbytes(rng.choice([10_000, 300_000, 2_000_000]))
        file = self._world.folder / "pushed"
        file.write_bytes(data)
        with self._history.operation("push", name, digest=hashlib.sha256(data).hexdigest()) as op:
            self._answer(op, client.datasets.push(name, pack_files({"data.bin": file})).dataset.id)
        if rng.random() < 0.2 and number > 3:
            victim = f"data-{rng.randint(1, number - 1)}"
            with self._history.operation("delete-dataset", victim):
                client.datasets.delete(victim)

    def _keys(self, client: Client, rng: random.Random, number: int) -> None:
        name = f"key-{number}"
        with self._history.operation("key", name) as op:
            key = client.keys.create(name).key
        if op.result == "ok" and rng.random() < 0.5:
            with self._history.operation("revoke", name) as op:
                client.keys.revoke(name)
            if op.result == "ok":
                self.revoked.append(key)
        if self.revoked:
            self._try_revoked(rng.choice(self.revoked))

    def _try_revoked(self, key: str) -> None:
        record = self._world.record()
        if record is None:
            return
        with suppress(ShoalError, OSError), Client(record.url, key) as client:
            try:
                client.jobs.list(limit=1)
            except AuthError:
                return
            self._history.note("revived", "key", "a revoked key was accepted")

    def _read(self, client: Client, rng: random.Random, number: int) -> None:
        """Read lists, a job, its log and its metrics, and remember which lines were shown."""
        with self._history.operation("read", "lists") as op:
            jobs = [job for job in client.jobs.list(limit=30) if job.name.startswith("job-")]
            client.datasets.list()
        if op.result != "ok" or not jobs:
            return
        job = rng.choice(jobs)
        with self._history.operation("read", job.name), suppress(NotFound):
            client.jobs.get(job.id)
            client.metrics.names(job.id)
            lines = client.jobs.logs(job.id).lines
            self._history.show(job.id, [line_key(line.attempt, line.node, line.rank, line.text) for line in lines])

    @staticmethod
    def _answer(op: Operation, id: str) -> None:
        op.answer["id"] = id


def line_key(attempt: int, node: int, rank: int | None, text: str) -> str:
    return f"{attempt}/{node}/{'-' if rank is None else rank}/{text}"


def read_witness(folder: Path) -> dict[str, list[tuple[int, int, int, int, float]]]:
    """Return by job what its workers have really done: attempt, node, rank, step and time."""
    found = {}
    for file in folder.iterdir():
        rows = [line.split() for line in file.read_text().splitlines()]
        found[file.name] = [(int(a), int(n), int(r), int(s), float(t)) for a, n, r, s, t in rows]
    return found
