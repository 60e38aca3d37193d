"""A machine whose disk is full: nothing new starts there, `why` says so, and no job loses its restarts over it."""

import errno
import os
import shutil
from collections import namedtuple

import pytest

from shoal.core.faults import FULL_DISK
from shoal.core.jobs import JobSpec
from shoal.core.states import JobState
from shoal.engines.base import AgentState, Machine
from shoal.engines.local.engine import LocalEngine
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Job
from shoal.server.queue import service as queue
from shoal.server.scheduler.avoid import PAUSE_LEAST_S, Ended, avoided
from shoal.server.scheduler.loop import Scheduler
from shoal.server.scheduler.restarts import Cause, Failure, judge
from shoal.testing.server import IdleEngine, add_person, add_source, make_context

Usage = namedtuple("Usage", "total used free")
REASON = f"{FULL_DISK}: [Errno 28] No space left on device"


class FullEngine(IdleEngine):
    """One machine; its disk is full, known beforehand or noticed when a node is started."""

    refuses, is_full, started = "", False, 0

    def capacity(self):
        return [Machine(name="m", kind="cpu", slots=1, refuses=self.refuses)]

    def start(self, gang):
        self.started += 1
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def status(self, attempt_id, node):
        return AgentState.ALIVE


@pytest.fixture
def engine():
    return FullEngine()


@pytest.fixture
def ctx(tmp_path, engine):
    context = make_context(tmp_path, engine=engine)
    yield context
    context.db.close()


@pytest.fixture
def job(ctx):
    """Makes passes of the scheduler; returns the only job."""
    person = add_person(ctx, "a@b.c")
    spec = JobSpec(name="j", entry=["train.py"], source_id=add_source(ctx, person), max_restarts=3)
    job_id = jobs.submit(ctx, person.access(), spec).id
    scheduler = Scheduler(ctx, "http://nowhere")

    def after_passes(number=1):
        for _ in range(number):
            scheduler.pass_once()
        with ctx.db.read() as session:
            return session.get_one(Job, job_id)

    after_passes.why = lambda: queue.why(ctx, person.access(), job_id)
    return after_passes


def test_nothing_starts_on_a_machine_whose_disk_is_full_and_the_job_says_what_it_waits_for(job, engine):
    engine.refuses = "out of disk space (3 MiB free)"
    found = job(5)
    assert (found.state, found.attempts) == (JobState.QUEUED, 0)
    assert "m is out of disk space (3 MiB free)" in job.why().text
    engine.refuses = ""
    assert job().state == JobState.STARTING


def test_a_disk_that_turns_out_to_be_full_costs_a_pause_and_no_restart(job, engine):
    engine.is_full = True
    found = job(20)
    assert (found.state, found.attempts, found.restarts_used) == (JobState.QUEUED, 1, 0)
    assert FULL_DISK in found.reason
    assert engine.started == 1
    assert "failed on m" in job.why().text


@pytest.mark.parametrize("cause", [Cause.SETUP, Cause.LOST])
def test_a_full_disk_never_uses_up_the_restarts(cause):
    for most, used in ((3, 3), (0, 0)):
        verdict = judge(Failure(cause=cause, reason=REASON, progressed=False, restarts_used=used, max_restarts=most))
        assert (verdict.restart, verdict.restarts_used) == (True, used)


def test_what_the_job_itself_wrote_too_much_is_still_its_own_fault():
    own = Failure(
        cause=Cause.ERROR,
        reason="OSError: [Errno 28] No space left on device",
        progressed=False,
        restarts_used=0,
        max_restarts=3,
    )
    assert not judge(own).restart


def test_a_full_machine_is_avoided_for_longer_each_time():
    pauses = [
        avoided([Ended(n, "m", [0], REASON, 100.0 + n) for n in range(1, tries + 1)]).until - 100.0 - tries
        for tries in (1, 2, 3)
    ]
    assert pauses == [PAUSE_LEAST_S, 2 * PAUSE_LEAST_S, 4 * PAUSE_LEAST_S]


def test_the_servers_own_machine_takes_nothing_new_while_its_disk_is_full(tmp_path, monkeypatch):
    engine = LocalEngine(tmp_path / "nodes", slots=1)
    assert engine.capacity()[0].refuses == ""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 1 << 40, 3 << 20))
    assert engine.capacity()[0].refuses == "out of disk space (3 MiB free)"
