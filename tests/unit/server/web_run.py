"""A job and what its agents have told of it, through the services that their calls end in."""

from __future__ import annotations

import itertools
import json
from typing import Any

import zstandard
from sqlalchemy import select

from shoal.core.artifacts import Chunk, FileEntry, Manifest, SourceCommit
from shoal.core.ids import new_id
from shoal.core.jobs import JobSpec
from shoal.core.metrics import MediaCommit
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server.artifacts import chunks, media, sources
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.jobs import streams
from shoal.server.jobs.events import move
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.policy import AgentIdentity, hash_token
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames
from shoal.testing.server import Person

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c63f8cfc0f01f0005000201ffa3c0d3a80000000049454e44ae426082"
)
_numbers = itertools.count()


def put(ctx: Context, person: Person, path: str, data: bytes) -> FileEntry:
    digest = chunk_hash(data)
    if data:
        chunks.put(ctx, person.workspace_id, b"".join(encode_frames([(digest, data)])))
    return FileEntry(path=path, size=len(data), chunks=[Chunk(hash=digest, size=len(data))] if data else [])


class Run:
    def __init__(self, ctx: Context, person: Person, name: str = "a-job", *, files: dict[str, bytes] | None = None,
                 origin: dict[str, str] | None = None, **spec: Any):  # fmt: skip
        self.ctx, self.person, self.name = ctx, person, name
        given = files or {"train.py": b"import torch\n\nprint('hello')  # greets\n"}
        manifest = Manifest(files=[put(ctx, person, path, given[path]) for path in sorted(given)])
        source = sources.commit(ctx, person.access(), SourceCommit(manifest=manifest, origin=origin or {}))
        self._submit({"source_id": source.id} | spec)

    @classmethod
    def of_source(cls, ctx: Context, person: Person, name: str, source_id: str, **spec: Any) -> Run:
        """Another job of a source that is there."""
        run = cls.__new__(cls)
        run.ctx, run.person, run.name = ctx, person, name
        run._submit({"source_id": source_id} | spec)
        return run

    def _submit(self, spec: dict[str, Any]) -> None:
        values = {"name": self.name, "entry": ["train.py"]} | spec
        self.id = jobs.submit(self.ctx, self.person.access(), JobSpec(**values)).id
        self.attempt()

    def attempt(self) -> Run:
        """The next one; those before it have ended."""

        def work(session: Any) -> tuple[str, int]:
            before = session.scalars(select(Attempt).where(Attempt.job_id == self.id)).all()
            for old in before:
                old.fenced, old.state = True, "ended"
            made = Attempt(
                id=new_id("att"), job_id=self.id, number=len(before) + 1, state="running", num_nodes=1, created_at=utcnow()
            )  # fmt: skip
            session.add(made)
            session.flush()
            token = hash_token(f"{made.id}")
            session.add(Node(attempt_id=made.id, index=0, machine="m", slots=[0], state="running", token_hash=token))
            session.get_one(Job, self.id).attempts = made.number
            return made.id, made.number

        attempt_id, number = self.ctx.db.write(work)
        self.who = AgentIdentity(self.id, attempt_id, number, 0)
        self._next: dict[str, int] = {}
        return self

    def send(self, stream: str, *records: dict[str, Any]) -> Run:
        first = self._next.get(stream, 0)
        lines = [{"s": first + n, "t": 1000.0 + first + n, **record} for n, record in enumerate(records)]
        if stream == "metric":
            lines = [{"rank": 0, "q": line["s"], **line} for line in lines]
        body = zstandard.compress("\n".join(json.dumps(line) for line in lines).encode())
        streams.append(self.ctx, self.who, stream, first, len(lines), body)
        self._next[stream] = first + len(lines)
        return self

    def steps(self, first: int, end: int, **values: Any) -> Run:
        return self.send(
            "metric", *({"k": "s", "i": i, "v": {k: f(i) for k, f in values.items()}} for i in range(first, end))
        )

    def config(self, **values: Any) -> Run:
        return self.send("metric", {"k": "h", "v": values})

    def log(self, *texts: str) -> Run:
        return self.send("log", *({"r": 0, "e": "out", "m": text} for text in texts))

    def environment(self, python: str, **packages: str) -> Run:
        return self.send("system", {"env": {"python": python, "packages": packages}})

    def show(self, name: str, data: bytes, *, mime: str = "image/png", type: str = "image", step: int = 0) -> str:
        entry = put(self.ctx, self.person, "shown", data)
        request = MediaCommit(
            rank=0, n=next(_numbers), t=1000.0, step=step, name=name, type=type, mime=mime, manifest=Manifest(files=[entry])
        )  # fmt: skip
        return media.commit(self.ctx, self.who, request).id or ""

    def table(self, name: str, columns: list[Any], rows: list[list[Any]], *, step: int = 0) -> str:
        data = json.dumps({"columns": columns, "rows": rows}).encode()
        return self.show(name, data, mime="application/json", type="table", step=step)

    def become(self, *states: str, reason: str | None = None) -> Run:
        def work(session: Any) -> None:
            job = session.get_one(Job, self.id)
            for state in states:
                move(session, job, JobState(state), reason or state, attempt=1)
                job.started_at = job.started_at or utcnow()
            job.reason = reason

        self.ctx.db.write(work)
        self.ctx.live.job_changed(self.id)
        return self
