"""Money and time on a server: what is charged, to whom, up to which moment; prices, budgets, and a ledger that shows tampering."""

from dataclasses import replace
from datetime import timedelta

import pytest
from queueworld import TwoMachines, World
from sqlalchemy import select, text, update
from sqlalchemy.exc import IntegrityError

from shoal.agent.devices.device import Device
from shoal.core.billing import QuoteRequest
from shoal.core.errors import InvalidSpec
from shoal.core.jobs import Progress
from shoal.core.schema import utcnow
from shoal.core.states import JobState, NodeState
from shoal.engines.base import Machine
from shoal.server.billing import ledger
from shoal.server.billing import service as billing
from shoal.server.billing.quotes import quote
from shoal.server.billing.usage_clock import UsageClock
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Attempt
from shoal.server.models.ledger import LedgerEntry, OpenSpan
from shoal.testing.server import add_source

HOUR = 3600
NOON = 1_800_014_400.0
"""2027-01-15T12:00:00Z."""


class Clock:
    now = NOON

    def __call__(self):
        return self.now


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, TwoMachines())
    world.clock = Clock()
    world.ctx.usage_clock = UsageClock(wall_s=world.clock, boot_s=world.clock, boot="b")
    yield world
    world.ctx.db.close()


def price(world, **prices):
    world.ctx.settings = replace(world.ctx.settings, **prices)


def start(world, name, **wishes):
    job = world.submit(name, **wishes)
    world.tick()
    return job


def work_for(world, seconds, *running):
    """They are heard of at the end of it, which is made to last."""
    world.clock.now += seconds
    for job in running:
        world.beat(job, state=NodeState.RUNNING)
    renew(world)


def renew(world):
    world.ctx.db.write(lambda s: ledger.renew(s, world.ctx.usage_clock))


def usage(world, by="job", **options):
    return world.as_anna.get("/workspaces/default/billing/usage", params={"by": by} | options).json()


def lose(world, job):
    with world.ctx.db.read() as session:
        attempt = session.scalars(select(Attempt.id).where(Attempt.job_id == job).order_by(Attempt.id.desc())).first()
    world.scheduler._lose(attempt, [0], "its agent died")


def test_slots_are_charged_from_the_first_word_to_the_end_at_the_price_of_the_start(world):
    price(world, price_cpu=1.2)
    job = start(world, "two", accels=2)
    work_for(world, HOUR // 2, job)
    price(world, price_cpu=100.0)
    work_for(world, 10, job)
    world.clock.now += 5
    world.end(job)
    row = usage(world)["rows"][0]
    assert row["key"] == "two" and row["slot_seconds"] == 2 * 1815
    assert row["cost"] == pytest.approx(2 * 1815 / HOUR * 1.2, abs=1e-6) and row["currency"] == "EUR"
    later = start(world, "later")
    work_for(world, 36, later)
    assert usage(world)["costs"] == {"EUR": pytest.approx(2 * 1815 / HOUR * 1.2 + 1.0, abs=1e-6)}


def test_what_runs_is_in_the_sums_and_is_entered_by_the_hour(world):
    job = start(world, "long")
    work_for(world, 2 * HOUR + 90, job)
    with world.ctx.db.read() as session:
        entries = session.scalars(select(LedgerEntry)).all()
    assert [(e.end_ms - e.start_ms) / 1000 for e in entries] == [HOUR, HOUR]
    found = usage(world)
    assert found["slot_seconds"] == 2 * HOUR + 90 and found["costs"] == {} and found["rows"][0]["cost"] is None


def test_a_lost_node_is_charged_up_to_its_last_word(world):
    job = start(world, "lost", max_restarts=0)
    work_for(world, 60, job)
    world.clock.now += 500
    lose(world, job)
    assert usage(world)["slot_seconds"] == 60


def test_a_node_that_never_spoke_costs_nothing(world):
    job = world.submit("mute", max_restarts=0)
    world.scheduler.pass_once()
    world.clock.now += 100
    lose(world, job)
    with world.ctx.db.read() as session:
        assert session.scalar(select(LedgerEntry.seq)) is None and session.scalar(select(OpenSpan.node)) is None


def test_an_outage_is_charged_if_the_node_worked_on_and_not_if_it_ended_meanwhile(world):
    on, over = start(world, "on"), start(world, "over")
    work_for(world, 60, on, over)
    # Another process, whose wall clock was set to 1970 meanwhile.
    world.ctx.usage_clock = UsageClock(wall_s=lambda: 0.0, boot_s=world.clock, boot="b")
    world.clock.now += 600
    ledger.begin(world.ctx)
    world.beat(on, state=NodeState.RUNNING)
    world.end(over)
    world.end(on)
    assert {r["key"]: r["slot_seconds"] for r in usage(world)["rows"]} == {"on": 660, "over": 60}


def test_usage_outlives_its_job_and_is_told_by_day_person_and_workspace(world):
    first = start(world, "first")
    work_for(world, 14 * HOUR, first)  # from noon into the next day
    world.end(first)
    other = start(world, "other", person=world.berta)
    work_for(world, 60, other)
    jobs.delete(world.ctx, world.anna.access(), first)
    days = usage(world, by="day")["rows"]
    assert [(r["key"], r["slot_seconds"]) for r in days] == [("2027-01-15", 12 * HOUR), ("2027-01-16", 2 * HOUR)]
    assert usage(world, since="2027-01-15T13:00:00Z", until="2027-01-15T14:30:00Z")["slot_seconds"] == 1.5 * HOUR
    assert [r["key"] for r in usage(world, by="person")["rows"]] == ["anna@example.org"]
    everyone = world.as_anna.get("/admin/billing/usage", params={"by": "person"}).json()
    assert [r["key"] for r in everyone["rows"]] == ["anna@example.org", "berta@example.org"]
    mine = world.as_berta.get("/billing/usage").json()
    assert [(r["key"], r["slot_seconds"]) for r in mine["rows"]] == [("default", 60)]


def test_the_sum_over_jobs_is_what_a_sweep_shows(world):
    price(world, price_cpu=0.36)
    ids = [start(world, f"t{n}") for n in range(3)]
    work_for(world, 100, *ids)
    world.end(ids[0])
    with world.ctx.db.read() as session:
        seconds, cost = billing.slot_seconds_and_cost(session, ids)
        assert (seconds, cost) == (300, pytest.approx(0.03))
        assert billing.slot_seconds_and_cost(session, ["job_none"]) == (0, None)


def test_entries_can_be_neither_changed_nor_removed_nor_doubled(world):
    job = start(world, "kept")
    work_for(world, 60, job)
    world.end(job)
    for statement in ("UPDATE ledger SET slots = 0", "DELETE FROM ledger", "REPLACE INTO ledger SELECT * FROM ledger"):
        with pytest.raises(IntegrityError, match="append-only"):
            world.ctx.db.write(lambda s, q=statement: s.execute(text(q)))
    columns = ", ".join(c.name for c in LedgerEntry.__table__.columns if c.name != "seq")
    with pytest.raises(IntegrityError, match="UNIQUE"):
        world.ctx.db.write(
            lambda s: s.execute(text(f"INSERT INTO ledger (seq, {columns}) SELECT 2, {columns} FROM ledger"))
        )
    assert world.as_anna.get("/admin/billing/verify").json()["whole"]


def test_tampering_is_named_to_those_whose_entry_it_is(world):
    for name, person in (("annas", world.anna), ("bertas", world.berta)):
        job = start(world, name, person=person)
        work_for(world, 60, job)
        world.end(job)
    head = world.as_berta.get("/workspaces/default/billing/verify").json()
    assert head["whole"] and head["entries"] == 2
    noted = {"head": f"{head['seq']}:{head['head']}"}

    def tamper(session):
        session.execute(text("DROP TRIGGER ledger_no_update"))
        session.execute(text("UPDATE ledger SET end_ms = end_ms - 1000 WHERE job = 'bertas'"))

    world.ctx.db.write(tamper)
    problem = {"seq": 2, "job": "bertas", "what": "its contents do not match its hash"}
    assert world.as_berta.get("/workspaces/default/billing/verify").json()["problems"] == [problem]
    told = world.as_anna.get("/workspaces/default/billing/verify").json()
    assert not told["whole"] and told["problems"] == []
    assert world.as_anna.get("/admin/billing/verify").json()["problems"] == [problem]
    forged = world.as_anna.get("/admin/billing/verify", params=noted | {"head": "2:" + "0" * 64}).json()
    assert "you gave" in forged["problems"][-1]["what"]
    assert world.as_anna.get("/admin/billing/verify", params={"head": "nonsense"}).status_code == 422


def test_prices_are_settings_that_admins_change_and_all_can_read(world):
    changed = world.as_anna.request("PATCH", "/admin/limits", json={"price_cuda": 1.2, "currency": "USD"})
    assert changed.json()["price_cuda"] == 1.2
    assert world.as_berta.get("/billing/prices").json() == {
        "currency": "USD",
        "prices": {"cpu": 0.0, "cuda": 1.2, "rocm": 0.0, "xpu": 0.0},
        "models": {},
    }
    priced = {"price_models": "A100 80GB = 2,H100=3.50,"}
    assert (
        world.as_anna.request("PATCH", "/admin/limits", json=priced).json()["price_models"] == "A100 80GB=2, H100=3.5"
    )
    assert world.as_berta.get("/billing/prices").json()["models"] == {"H100": 3.5, "A100 80GB": 2.0}
    for bad in ({"price_cpu": -1}, {"price_cpu": "nan"}, {"currency": "euro"}, {"price_models": "H100"},
                {"price_models": "H100=-1"}, {"price_models": "H100=nan"}, {"price_models": "=3"}):  # fmt: skip
        assert world.as_anna.request("PATCH", "/admin/limits", json=bad).status_code == 422


def test_a_model_has_its_own_price_in_the_ledger_in_budgets_and_in_quotes(world):
    price(world, price_models="H100=3.60, A100=9")
    h100, t4 = (
        Device(kind="cuda", index=i, uuid=f"GPU-{i}", model=m)
        for i, m in enumerate(("NVIDIA H100 80GB HBM3", "Tesla T4"))
    )
    pool = [Machine(name="gpu1", kind="cuda", slots=2, inventory=(h100, t4))]
    next(iter(world.ctx.engine._engines.values())).capacity = lambda: pool
    with pytest.raises(InvalidSpec, match="slots of kind cuda have no price here"):
        world.submit("b", budget="5.00")
    job = start(world, "b", budget="5.00", gpu="H100")
    work_for(world, 100, job)
    assert usage(world)["rows"][0]["cost"] == pytest.approx(0.1, abs=1e-3)
    assert {gpu: quote(world.ctx, world.anna.access(), QuoteRequest(entry=["t.py"], gpu=gpu)).price for gpu in ("H100", "T4")} == {
        "H100": 3.6, "T4": 0.0,
    }  # fmt: skip


def test_a_budget_of_money_needs_a_price(world):
    with pytest.raises(InvalidSpec, match="slots of kind cpu have no price here") as refused:
        world.submit("b", budget="5.00")
    assert "--budget 2h" in refused.value.hint
    world.submit("ok", budget="2h")
    price(world, price_cpu=0.1)
    world.submit("b", budget="5.00")


def spend(world, job, seconds):
    """Let a job run for this long or until its stop is requested; return how long it ran."""
    begun = world.clock.now
    while world.clock.now - begun < seconds:
        world.clock.now += 2
        stop = world.beat(job, state=NodeState.RUNNING).stop
        world.scheduler.pass_once()
        if stop:
            return world.clock.now - begun
    return None


@pytest.mark.parametrize(("budget", "text"), [("0.10", "budget of 0.10 EUR reached"), ("200s", "budget of 200s of slot time reached")])  # fmt: skip
def test_a_job_is_stopped_in_time_to_save_within_its_budget(world, budget, text):
    price(world, price_cpu=1.8)
    job = start(world, "capped", budget=budget, accels=2)
    work_for(world, 70, job)
    took = 70 + spend(world, job, 200)
    assert 80 <= took <= 100 - world.ctx.settings.stop_grace_s
    world.clock.now += world.ctx.settings.stop_grace_s
    world.end(job, 143, told=True)
    view = world.view(job)
    assert view.status is JobState.FAILED and view.reason == text
    assert usage(world)["costs"]["EUR"] <= 0.10


def test_a_job_with_a_long_grace_period_is_stopped_so_much_earlier(world):
    price(world, price_cpu=1.8)
    job = start(world, "capped", budget="0.10", accels=2, grace_s=60)
    work_for(world, 20, job)
    assert 20 + spend(world, job, 200) <= 100 - 60


def test_what_earlier_attempts_used_counts_unless_someone_resumes(world):
    job = start(world, "again", budget="200s", max_restarts=5)
    work_for(world, 120, job)
    world.end(job, -9, failed_rank=0)
    world.tick()
    work_for(world, 50, job)
    assert 5 <= spend(world, job, 300) <= 30
    world.end(job, 143, told=True)
    jobs.resume(world.ctx, world.anna.access(), job)
    world.tick()
    work_for(world, 175, job)
    assert spend(world, job, 300) >= 5


def test_a_quote_rests_on_what_jobs_like_it_took(world):
    price(world, price_cpu=3.6)
    ask = {"entry": ["train.py", "--steps", "1000"], "accels": 1, "source_id": world.sources["anna@example.org"]}
    nothing = world.as_anna.post("/workspaces/default/quotes", ask).json()
    assert nothing["rows"] == [] and "no job of this workspace" in nothing["said"][0]
    job = world.submit("earlier", entry=["train.py", "--steps", "1000"])
    world.tick()
    world.end(job, progress=Progress(step=1000, total=1000))
    began = utcnow()
    spans = {
        "created_at": began,
        "started_at": began + timedelta(seconds=10),
        "ended_at": began + timedelta(seconds=110),
    }
    world.ctx.db.write(lambda s: s.execute(update(Attempt).values(**spans)) and None)
    found = world.as_anna.post("/workspaces/default/quotes", ask).json()
    assert found["rests_on"] == ["earlier"] and found["steps"] == 1000
    sizes = [(r["accels"], r["basis"], r["low_s"], r["high_s"], r["cost_low"]) for r in found["rows"]]
    assert sizes == [(1, "measured", 110, 110, 0.11), (2, "bound", 55, None, 0.11), (4, "bound", 27.5, None, 0.11)]
    longer = world.as_anna.post("/workspaces/default/quotes", ask | {"entry": ["train.py", "--steps", "4000"]}).json()
    assert longer["rows"][0]["basis"] == "scaled" and longer["rows"][0]["low_s"] == 410
    other = ask | {"source_id": add_source(world.ctx, world.anna, b"other")}
    more = world.as_anna.post("/workspaces/default/quotes", ask | {"entry": [*ask["entry"], "--seed", "1"]}).json()
    assert [row["low_s"] for row in more["rows"]] == [row["low_s"] for row in found["rows"]]
    assert "a guess: the similar jobs have other options (+--seed)" in more["said"]
    far = ["train.py", "--a", "1", "--b", "1", "--c", "1"]
    assert world.as_anna.post("/workspaces/default/quotes", ask | {"entry": far}).json()["rows"] == []
    assert "1 of 1 ran different code" in world.as_anna.post("/workspaces/default/quotes", other).json()["said"]
    assert world.as_berta.post("/workspaces/default/quotes", ask | {"source_id": None}).json()["rows"] == []
