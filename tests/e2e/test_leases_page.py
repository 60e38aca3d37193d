"""A lease that soon ends, in the browser of the one who rented it: every page says so, and one press goes on with it."""

from datetime import timedelta

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from browser_actions import enter
from playwright.sync_api import expect
from sqlalchemy import select, update

from shoal.core.leases import LeaseRequest
from shoal.core.schema import utcnow
from shoal.core.settings import Layout, ServerSettings
from shoal.server.leases import service as leases
from shoal.server.models.leases import Lease
from shoal.server.models.users import User
from shoal.server.models.workspaces import Workspace
from shoal.server.run import open_context
from shoal.testing.live import live_server
from shoal.testing.server import Person

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def server(tmp_path):
    """Its owner has rented more than there is, so that the lease waits and nothing runs; its time runs all the same."""
    home = tmp_path / "home"
    ctx = open_context(Layout(home), ServerSettings(slots=2))
    with ctx.db.read() as session:
        owner, workspace = session.scalars(select(User)).one(), session.scalars(select(Workspace)).one()
    ctx.gateway.demand = lambda: None
    leases.rent(
        ctx, Person(owner.id, owner.email, workspace.id, "", "key_none").access(), LeaseRequest(name="box", accels=2)
    )
    soon = update(Lease).values(expires_at=utcnow() + timedelta(minutes=50))
    ctx.db.write(lambda session: session.execute(soon) and None)
    ctx.db.close()
    with live_server(home, slots=1, warm=False) as server:
        yield server


def test_a_lease_that_soon_ends_is_told_on_every_page_and_extended_from_there(server, watched):
    page = watched.page
    base = enter(server, page)
    for path in ("/", "/keys", "/w/default/leases"):
        page.goto(base + path)
        expect(page.locator("#ending")).to_contain_text("Your lease box ends in 4")
        assert page.evaluate(OVERFLOW) == 0
        watched.shoot(f"ending{path.replace('/', '-')}")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(OVERFLOW) == 0
    watched.shoot("ending-phone")
    page.set_viewport_size({"width": 1280, "height": 860})
    page.get_by_role("button", name="Rent a machine").click()
    page.get_by_text("Code, in the folder source").click()
    expect(page.get_by_label("Git repository")).to_be_visible()
    watched.shoot("rent-dialog")
    page.get_by_role("button", name="Cancel").click()
    page.locator("#ending").get_by_role("button", name="Extend by 8 h").click()
    expect(page.locator("#ending")).not_to_contain_text("Your lease")
    assert server.json("machine", "list")["leases"][0]["left_s"] > 8 * 3600
    assert watched.problems == []
