"""The workspace a person is in stays chosen on pages outside any, and on the next visit."""

import re

import pytest
from web_browser import BASE, Browser

from shoal.core.people import WorkspaceCreate
from shoal.server.people import workspaces

OUTSIDE = ("/", "/workspaces", "/machines", "/queue", "/keys", "/usage", "/settings")


@pytest.fixture
def browser(app, ctx, anna):
    workspaces.create_workspace(ctx, anna.access().principal, WorkspaceCreate(name="vision"))
    return Browser(app).enter(ctx, anna)


def chosen(answer):
    """The workspace the side bar shows the links of."""
    assert answer.status_code == 200
    return re.search(r'href="/w/([^/"]+)/members"><svg', answer.text).group(1)


@pytest.mark.parametrize("path", OUTSIDE)
def test_pages_outside_any_workspace_keep_the_one_last_visited(browser, path):
    assert chosen(browser.get(path)) == "default"
    assert chosen(browser.get("/w/vision/jobs")) == "vision"
    assert chosen(browser.get(path)) == "vision"
    assert chosen(browser.get("/w/default/datasets")) == "default"
    assert chosen(browser.get(path)) == "default"


def test_it_is_still_chosen_after_signing_out_and_in_again(app, ctx, anna, browser):
    browser.get("/w/vision/jobs")
    browser.post("/sign-out")
    assert chosen(browser.enter(ctx, anna).get("/")) == "vision"


def test_another_person_in_the_same_browser_sees_their_own(app, ctx, anna, berta, browser):
    browser.get("/w/vision/jobs")
    assert chosen(browser.enter(ctx, berta).get("/")) == "default"


def test_a_workspace_that_was_deleted_is_not_chosen_any_more(browser):
    browser.get("/w/vision/jobs")
    assert browser.post("/w/vision/delete", origin=BASE).status_code in (200, 303)
    assert chosen(browser.get("/")) == "default"


def test_programs_that_read_json_twins_change_nothing(browser):
    browser.get("/w/vision/jobs.json")
    assert chosen(browser.get("/")) == "default"
