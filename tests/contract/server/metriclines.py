"""Spool lines as agents send them, for tests of metrics."""

from __future__ import annotations

import json

import zstandard
from sqlalchemy import select

from shoal.core.agents import TOKEN_HEADER
from shoal.core.ids import new_id
from shoal.core.schema import utcnow
from shoal.server.models.jobs import Attempt, Node
from shoal.server.people import keys
from shoal.server.policy import hash_token
from shoal.testing.server import AppClient


def add_attempt(ctx, job_id, *, num_nodes=1):
    """The next attempt of a job; returns its agents' tokens. The ones before are fenced, as by the scheduler."""
    tokens = [keys.new_token("shoala_") for _ in range(num_nodes)]

    def work(session):
        before = session.scalars(select(Attempt).where(Attempt.job_id == job_id)).all()
        for attempt in before:
            attempt.fenced, attempt.state = True, "ended"
        attempt = Attempt(
            id=new_id("att"), job_id=job_id, number=len(before) + 1, state="running", num_nodes=num_nodes, created_at=utcnow()
        )  # fmt: skip
        session.add(attempt)
        session.flush()
        for index, token in enumerate(tokens):
            session.add(
                Node(attempt_id=attempt.id, index=index, machine="m", slots=[0], state="running", token_hash=hash_token(token))
            )  # fmt: skip

    ctx.db.write(work)
    return tokens


class Sender:
    """An agent that ships the lines it is given, numbered as a real one numbers them."""

    def __init__(self, app, token, *, rank=0):
        self.client = AppClient(app, headers={TOKEN_HEADER: token})
        self.rank, self.seq, self.line = rank, 0, 0

    def records(self, *records):
        made = []
        for record in records:
            made.append({"t": 1000.0 + self.line, "n": self.line, "rank": self.rank, "q": self.line, **record})
            self.line += 1
        return made

    def steps(self, first, end, **values):
        return self.send(*({"k": "s", "i": i, "v": {k: f(i) for k, f in values.items()}} for i in range(first, end)))

    def send(self, *records):
        answer = self.post(self.seq, self.records(*records))
        assert answer.status_code == 200, answer.text
        self.seq = answer.json()["next_seq"]
        return answer

    def post(self, seq_first, records, *, stream="metric"):
        lines = [r if isinstance(r, str) else json.dumps({"s": seq_first + i, **r}) for i, r in enumerate(records)]
        body = zstandard.compress("\n".join(lines).encode())
        params = {"seq_first": seq_first, "count": len(records)}
        return self.client.request("POST", f"/agent/segments/{stream}", params=params, content=body)
