"""The Machines page: everyone sees the pool; admins bring machines in and take them out."""

import pytest
from web_browser import Browser

from shoal.core.pool import PoolAdd, Problem
from shoal.server.pool import pool_rows
from shoal.testing.server import add_person

XSS = "<img src=x onerror=alert(1)>"


@pytest.fixture
def boss(app, ctx):
    return Browser(app).enter(ctx, add_person(ctx, "boss@example.org", is_admin=True))


@pytest.fixture
def failed(ctx):
    machine_id = pool_rows.make(ctx, "gpu1", PoolAdd(host="10.0.0.5", user="ada"), via="ssh")
    problem = Problem(text=XSS, fix="Mend it", is_fatal=True).model_dump()
    steps = [{"text": "Reaching ada@10.0.0.5", "state": "failed", "seconds": 1.5}]
    pool_rows.change(ctx, machine_id, state="failed", problems=[problem], steps=steps)
    return machine_id


def test_only_admins_see_how_machines_are_brought_in(browser, boss, failed):
    assert "Add a machine" in boss.get("/machines").text and "ada@10.0.0.5" in boss.get("/machines").text
    page = browser.get("/machines")
    assert page.status_code == 200 and "Add a machine" not in page.text and "10.0.0.5" not in page.text


def test_what_went_wrong_is_shown_and_never_run(boss, failed):
    page = boss.get("/machines").text
    assert XSS not in page and "&lt;img src=x" in page and "Mend it" in page and "1.5 s" in page


def test_a_machine_that_failed_can_be_forgotten(ctx, boss, failed):
    boss.post(f"/machines/{failed}/remove", {})
    assert "10.0.0.5" not in boss.get("/machines").text


@pytest.mark.parametrize("path", ["/machines", "/machines/gpu1/drain", "/machines/gpu1/remove"])
def test_others_change_nothing(browser, failed, path):
    assert browser.post(path, {"target": "ada@10.0.0.6"}).status_code == 403


def test_a_bad_target_is_refused_with_its_field(boss):
    answer = boss.post("/machines", {"target": "-oProxyCommand=x"})
    assert answer.status_code == 422


def test_an_admin_drains_the_servers_own_machine_and_takes_it_back(ctx, boss, browser):
    assert 'action="/machines/local/drain"' in boss.get("/machines").text
    assert "/machines/local/remove" not in boss.get("/machines").text
    assert "/machines/local" not in browser.get("/machines").text
    boss.post("/machines/local/drain", {})
    assert [m.state for m in ctx.engine.capacity()] == ["draining"]
    assert 'action="/machines/local/undrain"' in boss.get("/machines").text
    boss.post("/machines/local/undrain", {})
    assert [m.state for m in ctx.engine.capacity()] == ["up"]
