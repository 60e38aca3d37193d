"""The usage page and a job's own show what the ledger says, with costs where slots have a price."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from shoal.server.billing import ledger
from shoal.server.billing.usage_clock import UsageClock
from shoal.server.models.jobs import Attempt
from shoal.testing.server import add_job, add_node


class Clock:
    now = 1_800_014_400.0

    def __call__(self):
        return self.now


@pytest.fixture
def ran(ctx, anna):
    """A job that held its slot for half an hour, and holds it still."""
    clock = Clock()
    ctx.usage_clock = UsageClock(wall_s=clock, boot_s=clock, boot="b")
    job = add_job(ctx, anna, "used")
    add_node(ctx, job)

    def begin(session):
        attempt = session.scalars(select(Attempt).where(Attempt.job_id == job)).one()
        ledger.open_nodes(session, ctx.usage_clock, attempt, ctx.engine.capacity(), ctx.settings)
        ctx.usage_clock.record_message(attempt.id, 0)
        ledger.record_message(session, ctx.usage_clock, attempt.id, 0)
        clock.now += 1800
        ctx.usage_clock.record_message(attempt.id, 0)
        ledger.renew(session, ctx.usage_clock)

    return lambda: ctx.db.write(begin)


def test_without_prices_there_are_slot_hours_alone(browser, ran):
    ran()
    shown = browser.get("/usage")
    assert "<b>0.5</b><span>slot-hours in 30 days" in shown.text and "Cost" not in shown.text
    assert browser.get("/usage.json").json()["workspaces"][0]["slot_seconds"] == 1800
    assert "0.5000 slot-hours</dd>" in browser.get("/w/default/jobs/used").text


def test_with_prices_costs_stand_beside_them(browser, ctx, ran):
    ctx.settings = replace(ctx.settings, price_cpu=2.5, currency="USD")
    ran()
    shown = browser.get("/usage").text
    assert "<b>1.25</b><span>USD in 30 days" in shown and "Cost, total" in shown and "1.25 USD" in shown
    assert browser.get("/usage.json").json()["costs"] == {"USD": 1.25}
    assert "0.5000 slot-hours, 1.25 USD</dd>" in browser.get("/w/default/jobs/used").text
