"""The table of runs and the chart workspace in a browser: what the story of the researcher leaves out."""

import re

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from playwright.sync_api import expect
from watched import PHONE, WIDE

from shoal.testing.engines import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_runs_are_found_sorted_starred_and_unfolded_in_the_table(looking, filled):
    page = looking.page
    looking.problems.clear()
    page.set_viewport_size(WIDE)
    page.goto(f"{filled.base}/w/default/runs?column=lr&column=train/loss.min")
    rows = page.locator("#runs-rows tr[data-name]")
    expect(rows).to_have_count(4)
    page.get_by_role("button", name="train/loss.min", exact=True).click()
    expect(page).to_have_url(f"{filled.base}/w/default/runs?sort=train%2Floss.min&column=lr&column=train%2Floss.min")
    expect(rows.first).to_have_attribute("data-name", "wider")
    looking.shoot("runs-table")
    page.get_by_role("button", name="Trials of lr-and-width").click()
    expect(page.locator("#runs-rows tr.trial").first).to_be_visible()
    page.get_by_role("button", name="Trials of lr-and-width").click()
    expect(page.locator("#runs-rows tr.trial")).to_have_count(0)
    page.get_by_label("Query").fill("lr<0.02 -status:stopped")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("baseline")
    page.get_by_role("button", name="Star baseline").click()
    page.get_by_role("button", name="Remove the star of baseline").click()
    expect(page.get_by_role("button", name="Star baseline")).to_be_visible()
    page.get_by_label("Query").fill("lr>")
    expect(page.locator("#runs-error")).to_contain_text("has no value")
    page.set_viewport_size(PHONE)
    page.goto(f"{filled.base}/w/default/runs?column=lr")
    expect(rows).to_have_count(4)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    looking.shoot("runs-phone")
    assert looking.problems == []


def test_a_query_typed_before_the_script_is_loaded_counts(looking, filled):
    page, held = looking.page, []
    looking.problems.clear()
    page.set_viewport_size(WIDE)
    page.route("**/js/runs.js*", lambda route: held.append(route))
    page.goto(f"{filled.base}/w/default/runs", wait_until="commit")
    page.get_by_label("Query").fill("lr<0.02 -status:stopped")
    eventually(lambda: page.evaluate("true") and held)
    held[0].continue_()
    page.unroute("**/js/runs.js*")
    expect(page.locator("#runs-rows tr[data-name]")).to_have_count(1)
    expect(page).to_have_url(re.compile("lr%3C0.02"))
    assert looking.problems == []


def test_charts_are_pinned_changed_added_and_saved_as_files(looking, filled):
    page = looking.page
    looking.problems.clear()
    page.set_viewport_size(WIDE)
    page.goto(f"{filled.base}/w/default/compare?jobs=baseline,longer")
    loss = page.locator(".chart[data-text='train/loss']")
    expect(loss.locator("canvas")).to_be_visible()
    dialog = page.locator("#panel-dialog")
    loss.get_by_role("button", name="Options of train/loss").click()
    dialog.get_by_role("button", name="Pin", exact=True).click()
    expect(page.locator(".chart-section[data-section=Pinned] .chart")).to_have_count(1)
    for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"step,")):
        loss.get_by_role("button", name="Options of train/loss").click()
        with page.expect_download() as downloaded:
            dialog.get_by_role("button", name=kind).click()
        assert downloaded.value.path().read_bytes().startswith(start), kind
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Add a chart").click()
    page.get_by_label("Title").fill("Half")
    page.get_by_label("Metrics or expressions, one per line").fill("train/loss / 2")
    dialog.get_by_role("button", name="Save").click()
    half = page.locator(".chart[data-text=Half]")
    expect(half.locator("canvas")).to_be_visible()
    legend = loss.locator(".plot-legend .key")
    expect(legend).to_have_count(2)
    legend.first.click()
    expect(legend.first).to_have_attribute("aria-pressed", "false")
    page.locator("summary", has_text="Options").click()
    page.get_by_label("Log scale").check()
    expect(page).to_have_url(re.compile("logy=1"))
    with page.expect_navigation():
        page.get_by_role("button", name="Discard my layout").click()
    expect(page.locator(".chart canvas").first).to_be_visible()
    expect(half).to_have_count(0)
    assert looking.problems == []


def test_the_palette_finds_runs_and_pages(looking, filled):
    page = looking.page
    looking.problems.clear()
    page.set_viewport_size(WIDE)
    page.goto(f"{filled.base}/w/default/datasets")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Find anything").fill("cosine")
    expect(page.get_by_role("option", name=re.compile("Baseline, cosine schedule"))).to_be_visible()
    looking.shoot("palette")
    page.get_by_role("option", name=re.compile("Baseline, cosine schedule")).click()
    expect(page.get_by_role("heading", name="Baseline, cosine schedule")).to_be_visible()
    assert looking.problems == []
