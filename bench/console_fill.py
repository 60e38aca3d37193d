"""Fills a data directory for bench/console.py: many jobs, and one with a great many points, lines and samples.

Through the services that requests end in; rows that services write one by one are inserted in bulk, as the services would.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from shoal.core.artifacts import Chunk, FileEntry, Manifest, SourceCommit
from shoal.core.checkpoints import CheckpointFacts, CheckpointPush
from shoal.core.datasets import DatasetBegin
from shoal.core.ids import new_id
from shoal.core.jobs import JobSpec
from shoal.core.metrics import MediaCommit
from shoal.core.people import ALL_SCOPES, Role
from shoal.core.schema import utcnow
from shoal.core.settings import Layout, ServerSettings
from shoal.core.states import JobState
from shoal.core.sweeps import Axis, Between, SweepSpec
from shoal.server.artifacts import checkpoints, chunks, datasets, media, sources
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.jobs import streams
from shoal.server.jobs.events import move, record_event
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.jobs import Attempt, Job, Node, Segment
from shoal.server.models.sweeps import Sweep, Trial
from shoal.server.models.users import User
from shoal.server.models.workspaces import Workspace
from shoal.server.policy import Access, AgentIdentity, Principal, hash_token
from shoal.server.run import open_context
from shoal.server.sweeps import service as sweeps
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames
from shoal.testing.server import make_context

BIG, LONG, SWEEP = "big", "long", "many"
TRIALS = 10_000
METRICS = ("loss", "lr", "grad_norm", "accuracy", "tokens/s")
LARGE_SEGMENT, SMALL_SEGMENT = 7_000, 25
"""Lines: of a script that prints as fast as it can, and of one that is watched."""
T0 = 1.7e9
ODD = "the one line with a needle in it"


def fill(home: Path, *, num_jobs: int, points: int, lines: int) -> None:
    open_context(Layout(home), ServerSettings(slots=4)).db.close()
    # The tables are there and so is the owner. From here on nothing is lost if the power goes but time.
    ctx = make_context(home)
    try:
        Filler(ctx, points, lines).fill(num_jobs)
    finally:
        ctx.db.close()


class Filler:
    def __init__(self, ctx: Context, points: int, lines: int):
        self.ctx, self.points, self.lines = ctx, points, lines
        self.rng = random.Random(0)
        with ctx.db.read() as session:
            owner = session.scalars(select(User)).one()
            workspace = session.scalars(select(Workspace)).one()
        principal = Principal(owner.id, owner.email, True, frozenset(ALL_SCOPES), "key_bench")
        self.access = Access(principal, workspace.id, workspace.name, Role.OWNER)
        files = {"train.py": b"print('hello')\n" * 200, "model/net.py": b"import torch\n" * 500, "a.png": b"\x89PNG"}
        manifest = Manifest(files=[self.put(path, data) for path, data in sorted(files.items())])
        self.source = sources.commit(ctx, self.access, SourceCommit(manifest=manifest)).id

    def fill(self, num_jobs: int) -> None:
        ends = (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)
        for index in range(num_jobs - 2):
            who = self.job(f"run-{index:04}", accels=1 + index % 4, end=ends[index % 3] if index % 20 else None)
            if index % 10 == 5:
                self.steps(who, 0, 200, METRICS)
        long = self.job(LONG, end=JobState.SUCCEEDED)
        self.steps(long, 0, self.points, METRICS[:1])
        self.big(self.job(BIG, end=JobState.FAILED))
        self.sweep()
        for index in range(50):
            self.dataset(f"data-{index:02}", 5000 if index == 0 else 3)

    def sweep(self) -> None:
        job = JobSpec(name=SWEEP, entry=["train.py"], source_id=self.source)
        space: dict[str, Axis] = {
            name: Between(low=1e-5, high=1e-1, log=True) for name in ("lr", "decay", "dropout", "warmup")
        }
        spec = SweepSpec(name=SWEEP, job=job, space=space, search="tpe", trials=TRIALS, parallel=8)
        made, now = sweeps.create(self.ctx, self.access, spec), utcnow()
        rows = [
            {
                "sweep_id": made.id, "number": number, "params": {name: 10 ** self.rng.uniform(-5, -1) for name in space},
                "key": str(number), "job_name": f"{SWEEP}-{number}", "state": "done", "result": self.rng.random(), "reports": 3,
                "step": 30, "curve": [], "seconds": 60.0, "created_at": now, "ended_at": now,
            }
            for number in range(TRIALS)
        ]  # fmt: skip

        def work(session: Session) -> None:
            session.execute(insert(Trial), rows)
            ended = update(Sweep).values(
                state="finished", ended_at=now, best=min(rows, key=lambda r: r["result"])["number"]
            )
            session.execute(ended.where(Sweep.id == made.id))

        self.ctx.db.write(work)

    def big(self, who: AgentIdentity) -> None:
        self.steps(who, 0, self.points // len(METRICS), METRICS)
        self.segments(who, "log", self.log_lines())
        samples = ([{"t": T0 + 5 * n, "cpu": n % 100, "rss": n << 10, "ram": n << 11}] for n in range(17_280))
        self.segments(who, "system", ("\n".join(map(json.dumps, some)) for some in samples))
        self.media(who)
        for step in range(0, 20_000, 100):
            entry = self.put("model.bin", f"weights {step}".encode())
            facts = CheckpointFacts(step=step, train_loss=1.0)
            manifest = Manifest(files=[entry])
            checkpoints.push(self.ctx, self.access, CheckpointPush(name=f"step-{step}", facts=facts, manifest=manifest))
        owned = update(Checkpoint).values(job_id=who.job_id, job_name=BIG, attempt=1, node=0)
        self.ctx.db.write(lambda session: session.execute(owned) and None)

    def job(self, name: str, *, accels: int = 1, end: JobState | None) -> AgentIdentity:
        """One that has ended, or, without an end, one that waits for nodes that never come."""
        spec = JobSpec(name=name, entry=["train.py", "--lr", "0.001"], source_id=self.source, accels=accels)
        job_id = jobs.submit(self.ctx, self.access, spec).id
        attempt_id = new_id("att")

        def work(session: Session) -> None:
            job = session.get_one(Job, job_id)
            if end is None:
                job.spec = job.spec | {"min_nodes": 64, "max_nodes": 64}
                return
            session.add(
                Attempt(
                    id=attempt_id, job_id=job_id, number=1, state="ended", fenced=True, num_nodes=1, created_at=utcnow()
                )
            )
            session.flush()
            session.add(
                Node(
                    attempt_id=attempt_id, index=0, machine="m", slots=[0], state="exited", final=True,
                    token_hash=hash_token(attempt_id),
                )
            )  # fmt: skip
            job.attempts, job.started_at = 1, utcnow()
            for state in (JobState.STARTING, JobState.RUNNING, end):
                move(session, job, state, state.value, attempt=1)
            for number in range(20 if name == BIG else 1):
                record_event(session, job, "note", f"what happened, number {number}", attempt=1)

        self.ctx.db.write(work)
        return AgentIdentity(job_id, attempt_id, 1, 0)

    def steps(self, who: AgentIdentity, first: int, end: int, names: tuple[str, ...]) -> None:
        for start in range(first, end, 8_000):
            lines = []
            for i in range(start, min(start + 8_000, end)):
                values = {name: self.rng.random() for name in names}
                lines.append(
                    json.dumps(
                        {"s": i, "t": T0 + i / 100, "n": i, "k": "s", "i": i, "v": values, "rank": 0, "q": i},
                        separators=(",", ":"),
                    )
                )
            streams.append(self.ctx, who, "metric", start, len(lines), pack("\n".join(lines)))

    def log_lines(self) -> Iterator[str]:
        """Half of them in large segments, half in small ones; the needle at nine tenths."""
        number = 0
        while number < self.lines:
            size = min(LARGE_SEGMENT if number < self.lines // 2 else SMALL_SEGMENT, self.lines - number)
            yield "\n".join(self.line(n) for n in range(number, number + size))
            number += size

    def line(self, n: int) -> str:
        told = f"step {n}  loss {self.rng.random():.4f}  lr 1.0e-03  tokens/s {self.rng.randrange(10**4, 10**5)}"
        if n == self.lines * 9 // 10:
            told = ODD
        if n == self.lines - 3:
            told = "Traceback (most recent call last):"
        return json.dumps({"s": n, "t": T0 + n / 10, "r": n % 4, "e": "out", "m": told}, separators=(",", ":"))

    def segments(self, who: AgentIdentity, stream: str, bodies: Iterator[str]) -> None:
        rows: list[dict[str, Any]] = []
        seq = 0
        for plain in bodies:
            count = plain.count("\n") + 1
            rows.append(
                {
                    "job_id": who.job_id, "attempt": 1, "node": 0, "stream": stream, "seq_first": seq, "count": count,
                    "t_last": T0 + seq, "body": pack(plain),
                }
            )  # fmt: skip
            seq += count
        for start in range(0, len(rows), 5_000):
            some = rows[start : start + 5_000]
            self.ctx.db.write(functools.partial(_insert, some))

    def media(self, who: AgentIdentity) -> None:
        table = json.dumps({"columns": ["text", "score"], "rows": [[f"row {n}", n / 7] for n in range(200)]}).encode()
        for n in range(60):
            kind, mime, data = (
                ("table", "application/json", table) if n % 3 == 0 else ("image", "image/png", b"\x89PNG")
            )
            manifest = Manifest(files=[self.put("shown", data)])
            shown = MediaCommit(
                rank=0, n=n, t=T0, step=n // 6, name=f"{kind} {n % 6}", type=kind, mime=mime, manifest=manifest
            )
            media.commit(self.ctx, who, shown)

    def dataset(self, name: str, files: int) -> None:
        row = self.put("x", b"id,text\n" + b"1,some words\n" * 5_000)
        entries = [row.model_copy(update={"path": f"part-{n // 100:03}/{n:05}.csv"}) for n in range(files)]
        begun = datasets.begin(self.ctx, self.access, DatasetBegin(name=name))
        datasets.commit(self.ctx, self.access, begun.id, Manifest(files=entries))

    def put(self, path: str, data: bytes) -> FileEntry:
        digest = chunk_hash(data)
        chunks.put(self.ctx, self.access.workspace_id, b"".join(encode_frames([(digest, data)])))
        return FileEntry(path=path, size=len(data), chunks=[Chunk(hash=digest, size=len(data))])


def pack(plain: str) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(plain.encode())


def _insert(rows: list[dict[str, Any]], session: Session) -> None:
    session.execute(insert(Segment), rows)
