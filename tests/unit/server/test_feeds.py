"""Followers of one job share one read: nobody misses or repeats a line, and two hundred cost little more than one."""

import asyncio
import json
from contextlib import aclosing

import pytest
import zstandard
from sqlalchemy import select

from shoal.server.jobs import follow, streams
from shoal.server.models.jobs import Attempt, Job
from shoal.server.policy import AgentIdentity
from shoal.testing.server import add_job, add_node

LINES = 10


@pytest.fixture
def job(ctx, anna):
    made = add_job(ctx, anna, "talks")
    add_node(ctx, made)
    return made


@pytest.fixture
def say(ctx, job):
    """Store ten more log lines of the job, as its agent does."""
    with ctx.db.read() as session:
        attempt = session.scalars(select(Attempt)).one()
    who, said = AgentIdentity(job, attempt.id, attempt.number, 0), [0]

    def more():
        records = [{"t": 1.0, "r": n % 2, "m": f"line {said[0] + n}"} for n in range(LINES)]
        body = zstandard.ZstdCompressor().compress("\n".join(map(json.dumps, records)).encode())
        streams.append(ctx, who, "log", said[0], LINES, body)
        said[0] += LINES

    return more


@pytest.fixture
def decodes(monkeypatch):
    true, count = streams.read_logs, []

    def counted(*args, **options):
        count.append(options["after"])
        return true(*args, **options)

    monkeypatch.setattr(streams, "read_logs", counted)
    return count


async def lines_of(ctx, anna, job, wanted, started, *, after=0, rank=None):
    found = []
    events = await follow.follow(ctx, anna.access(), job, after=after, node=None, rank=rank, since=None)
    async with aclosing(events):
        async for event in events:
            if event.startswith("event: job"):
                started.set()
            if event.startswith("event: log"):
                found += [line["text"] for line in json.loads(event.split("data: ", 1)[1])["lines"]]
            if len(found) >= wanted:
                break
    return found


def test_fifty_followers_get_every_line_once_by_few_reads(ctx, anna, job, say, decodes):
    async def run():
        started = [asyncio.Event() for _ in range(50)]
        readers = [asyncio.create_task(lines_of(ctx, anna, job, 5 * LINES, s)) for s in started]
        await asyncio.gather(*(s.wait() for s in started))
        before = len(decodes)
        for _ in range(5):
            await asyncio.to_thread(say)
        found = await asyncio.wait_for(asyncio.gather(*readers), 60)
        return found, len(decodes) - before

    found, reads = asyncio.run(run())
    assert all(lines == [f"line {n}" for n in range(5 * LINES)] for lines in found)
    # Followers may stand at different cursors for a moment, so a change can cost more than one read; fifty each would be 250.
    assert reads <= 5 * 6
    assert ctx.feeds._jobs == {}, "nothing is kept when nobody follows"


def test_followers_with_other_wishes_do_not_get_each_others_lines(ctx, anna, job, say):
    async def run():
        say()
        wishes = [(10, 0, None), (5, 0, 0), (5, 0, 1)]
        return await asyncio.gather(
            *(lines_of(ctx, anna, job, n, asyncio.Event(), after=a, rank=r) for n, a, r in wishes)
        )

    everything, even, odd = asyncio.run(run())
    assert everything == [f"line {n}" for n in range(10)]
    assert (even, odd) == ([f"line {n}" for n in range(0, 10, 2)], [f"line {n}" for n in range(1, 10, 2)])


def test_a_follower_that_leaves_does_not_end_the_others_read(ctx, anna, job, say):
    async def run():
        started = asyncio.Event(), asyncio.Event()
        leaves, stays = (asyncio.create_task(lines_of(ctx, anna, job, LINES, s)) for s in started)
        await asyncio.gather(*(s.wait() for s in started))
        await asyncio.to_thread(say)
        leaves.cancel()
        return await asyncio.wait_for(stays, 60)

    assert len(asyncio.run(run())) == LINES


def test_a_deleted_job_ends_the_stream(ctx, anna, job):
    async def run():
        started = asyncio.Event()
        reader = asyncio.create_task(lines_of(ctx, anna, job, 1, started))
        await started.wait()
        await asyncio.to_thread(ctx.db.write, lambda session: session.delete(session.get(Job, job)))
        ctx.live.job_changed(job)
        return await asyncio.wait_for(reader, 60)

    assert asyncio.run(run()) == []


def test_a_change_that_was_not_announced_is_found_by_the_next_regular_look(ctx, anna, job, say, monkeypatch):
    monkeypatch.setattr(follow, "_PING_S", 0.05)
    monkeypatch.setattr("shoal.server.jobs.feeds._LIFE_S", 0.02)

    async def run():
        started = asyncio.Event()
        reader = asyncio.create_task(lines_of(ctx, anna, job, LINES, started))
        await started.wait()
        monkeypatch.setattr(ctx.live, "job_changed", lambda *_, **__: None)
        await asyncio.to_thread(say)
        return await asyncio.wait_for(reader, 60)

    assert len(asyncio.run(run())) == LINES
