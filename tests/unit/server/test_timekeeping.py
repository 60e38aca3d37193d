"""Limits, leases and keys count elapsed time: a changed system clock ends nothing early and revives nothing."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from shoal.core.instance import claim
from shoal.core.jobs import JobSpec
from shoal.core.schema import timed_by, utcnow
from shoal.core.steady_clock import SteadyClock
from shoal.server import timekeeping
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Attempt
from shoal.server.models.users import ApiKey, SessionRow
from shoal.server.scheduler.loop import Scheduler, _over_time
from shoal.server.timekeeping import Timekeeper
from shoal.testing.server import AppClient, add_key, add_person, add_source, make_app

HOUR, DAY = 3600.0, 86_400.0


@pytest.fixture
def machine():
    class Machine:
        wall_s, boot_s = 1_900_000_000.0, 100.0

        def passes(self, seconds, jump_s=0.0):
            self.boot_s += seconds
            self.wall_s += seconds + jump_s

        def clock(self):
            return SteadyClock(wall_s=lambda: self.wall_s, boot_s=lambda: self.boot_s, boot="boot")

    return Machine()


@pytest.fixture
def clock(ctx, machine):
    made = machine.clock()
    ctx.clock = made
    with timed_by(made.now_s):
        yield made


@pytest.fixture
def keeper(ctx, clock):
    return Timekeeper(ctx, clock)


@pytest.fixture
def running(ctx, clock):
    anna = add_person(ctx, "anna@example.org")
    spec = JobSpec(name="j", entry=["train.py"], source_id=add_source(ctx, anna), time_limit_s=1800)
    job = jobs.submit(ctx, anna.access(), spec).id
    Scheduler(ctx, "http://nowhere").pass_once()

    def begin(session):
        attempt = session.scalars(select(Attempt)).one()
        attempt.state, attempt.started_at = "running", utcnow()
        attempt_job = session.get(jobs.Job, job)
        attempt_job.started_at = utcnow()

    ctx.db.write(begin)
    return job


def over_time(ctx):
    with ctx.db.read() as session:
        return [job for job, _ in _over_time(session)]


@pytest.mark.parametrize("jump_s", [HOUR, -HOUR, DAY, -DAY])
def test_a_time_limit_of_30_minutes_is_30_minutes(ctx, machine, keeper, running, jump_s):
    machine.passes(100, jump_s)
    keeper.pass_once()
    assert over_time(ctx) == []
    machine.passes(1600)
    keeper.pass_once()
    assert over_time(ctx) == []
    machine.passes(110)
    keeper.pass_once()
    assert over_time(ctx) == [running]


def test_a_jump_is_reported_while_something_runs_and_settled_when_idle(ctx, machine, clock, keeper, running):
    machine.passes(5, HOUR)
    keeper.pass_once()
    assert "changed by +3600 s" in keeper.problem().error
    assert clock.gap_s == pytest.approx(HOUR)

    def end(session):
        session.scalars(select(Attempt)).one().state = "ended"

    ctx.db.write(end)
    machine.passes(1)
    keeper.pass_once()
    assert keeper.problem() is None and clock.gap_s == pytest.approx(0)


def test_an_expired_key_never_works_again_when_the_system_clock_is_set_back(ctx, machine, clock, keeper):
    anna = add_person(ctx, "anna@example.org")
    key = add_key(ctx, anna, "short", life=timedelta(hours=1))
    long = add_key(ctx, anna, "long", life=timedelta(days=30))
    app = make_app(ctx)

    def status(token):
        return AppClient(app, token).get("/keys").status_code

    assert status(key) == 200
    machine.passes(HOUR + 1)
    keeper.pass_once()
    assert status(key) == 401
    machine.passes(1, -DAY)
    keeper.pass_once()  # nothing runs, so the server's clock follows
    assert clock.gap_s == pytest.approx(0)
    assert utcnow().timestamp() == pytest.approx(machine.wall_s)
    assert status(key) == 401, "revoked before the clock was set back"
    assert status(long) == 200


def test_sessions_and_invitations_that_expired_stay_so(ctx, machine, clock, keeper):
    anna = add_person(ctx, "anna@example.org")
    row = SessionRow(
        id="s",
        user_id=anna.user_id,
        secret_hash=b"x",
        created_at=utcnow(),
        expires_at=utcnow() + timedelta(hours=1),
        program=None,
    )
    ctx.db.write(lambda session: session.add(row))
    machine.passes(2 * HOUR, -DAY)
    keeper.pass_once()
    with ctx.db.read() as session:
        assert session.get(SessionRow, "s") is None


def test_a_jump_forward_expires_no_key_early_while_something_runs(ctx, machine, keeper, running):
    anna = add_person(ctx, "berta@example.org")
    key = add_key(ctx, anna, "short", life=timedelta(hours=2))
    machine.passes(60, DAY)
    keeper.pass_once()
    assert AppClient(make_app(ctx), key).get("/keys").status_code == 200
    with ctx.db.read() as session:
        assert session.scalars(select(ApiKey).where(ApiKey.name == "short")).one().revoked_at is None


def test_the_clock_continues_after_a_restart_of_the_server(ctx, machine, clock, keeper, running):
    claim(ctx.layout)
    machine.passes(60)
    keeper.pass_once()
    machine.passes(30)
    keeper.stop()
    machine.passes(600, -DAY)
    again = timekeeping.resume(ctx.layout, machine.clock())
    assert again.now_s() == pytest.approx(clock.now_s())


def test_an_unreadable_reading_counts_as_none(ctx, machine, clock):
    from shoal.server.models.server import ServerFact

    ctx.db.write(lambda session: session.add(ServerFact(name=timekeeping.FACT, value="{broken")))
    assert timekeeping.resume(ctx.layout, machine.clock()).gap_s == 0


def test_health_tells_of_the_jump(ctx, machine, clock, keeper, running):
    machine.passes(1, HOUR)
    keeper.pass_once()
    ctx.loops.watch("system clock", keeper.problem)
    found = AppClient(make_app(ctx)).get("/health").json()
    assert found["clock"]["jumped_s"] == 3600.0 and found["health"] == "degraded"
    assert [p["name"] for p in found["problems"]] == ["system clock"]
