"""A researcher's work through the pages alone: two hundred runs with seeds, to the best one, its samples beside the second's, and a
file for others. Then the same pages with the keyboard alone, and on a phone."""

import re
import statistics

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from playwright.sync_api import expect
from researched import BEST, SEEDS, SETTINGS, STEPS, end_of
from watched import PHONE, WIDE, Watched

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

GROUP = f"s{SETTINGS.index(BEST):02}"
FIRST, SECOND = f"{GROUP}-seed-0", f"{GROUP}-seed-1"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def here(chromium, shots, research):
    watched = Watched(chromium, shots).enter(research, research.session)
    watched.base = f"{research.base}/w/default"
    yield watched
    watched.context.close()


def menu(page, name):
    """Open a menu of the table."""
    page.locator("details.menu > summary", has_text=name).click()


def test_from_two_hundred_runs_to_the_best_and_its_file(here, research, tmp_path, chromium, shots):
    page = here.page
    page.set_viewport_size(WIDE)
    page.goto(f"{here.base}/runs")
    rows = page.locator("#runs-rows tr[data-name]")
    expect(page.locator("#runs-count")).to_have_text("200 runs")
    expect(page.locator("#runs-charts .chart canvas")).to_be_visible()
    the_best_setting_is_the_first_group(here, page)
    its_runs_are_listed_best_first(page, rows)
    the_view_is_saved_under_an_address_of_its_own(here, page, rows)
    samples_stand_side_by_side(here, page, rows)
    the_best_run_gets_title_tag_and_notes(here, page)
    page.goto(f"{here.base}/runs?q=tag:best")
    expect(rows).to_have_count(1)
    expect(rows.first.locator("td.main")).to_contain_text("Best of the search")
    it_is_shared_and_opened_without_a_network(page, here, chromium, shots, tmp_path)
    assert here.problems == []


def the_best_setting_is_the_first_group(here, page):
    page.get_by_label("Query").fill("opt:adam status:succeeded lr<1e-2")
    expect(page.locator("#runs-count")).to_have_text("80 runs")
    menu(page, "Columns")
    page.get_by_label("loss.min").check()
    menu(page, "Group")
    page.get_by_label("All but the seed").check()
    expect(page.locator("#runs-count")).to_have_text("16 groups")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="loss.min", exact=True).click()
    expect(page.get_by_role("columnheader", name="loss.min")).to_have_attribute("aria-sort", "ascending")
    first = page.locator("#runs-rows tr").first
    expect(first).to_contain_text("0.001")
    ends = [end_of(*BEST, seed) for seed in range(SEEDS)]
    shown = first.locator("td").last.inner_text()
    assert float(shown.split(" ± ")[0]) == pytest.approx(statistics.fmean(ends), abs=0.01)
    assert float(shown.split(" ± ")[1]) == pytest.approx(statistics.stdev(ends), abs=0.01)
    with page.expect_response(lambda answer: "/metrics/query" in answer.url) as answered:
        page.get_by_role("button", name="Show lr=0.001 width=256 in the charts").click()
    assert all(len(line["jobs"]) == SEEDS for line in answered.value.json()["lines"])
    here.shoot("researcher-groups")


def its_runs_are_listed_best_first(page, rows):
    page.get_by_role("link", name="Show the 5 runs of lr=0.001 width=256").click()
    expect(rows).to_have_count(SEEDS)
    expect(rows.nth(0)).to_have_attribute("data-name", FIRST)
    expect(rows.nth(1)).to_have_attribute("data-name", SECOND)
    assert "group=" not in page.url and "width%3A256" in page.url


def the_view_is_saved_under_an_address_of_its_own(here, page, rows):
    page.get_by_role("button", name=f"Show {GROUP}-seed-4 in the charts").click()
    menu(page, "Views")
    page.get_by_role("button", name="Save this view").click()
    page.locator("#view-name").fill("best-seeds")
    page.locator("#save-view").get_by_role("button", name="Save").click()
    expect(page).to_have_url(f"{here.base}/runs?view=best-seeds")
    page.goto(f"{here.base}/runs")
    expect(page.locator("#runs-count")).to_have_text("200 runs")
    menu(page, "Views")
    page.get_by_role("link", name="best-seeds").click()
    expect(rows).to_have_count(SEEDS)
    expect(page.get_by_role("button", name=f"Show {GROUP}-seed-4 in the charts")).to_have_attribute(
        "aria-pressed", "false"
    )
    expect(page.get_by_role("button", name=f"Show {FIRST} in the charts")).to_have_attribute("aria-pressed", "true")
    here.shoot("researcher-view")


def samples_stand_side_by_side(here, page, rows):
    for name in (FIRST, SECOND):
        page.get_by_label(f"Choose {name}").check()
    page.locator("#runs-compare").click()
    pictures = page.locator("#media td img")
    expect(pictures).to_have_count(2)
    slider = page.locator("#media-step")
    expect(page.locator("#media output")).to_have_text(f"step {STEPS - 1}")
    newest = [picture.get_attribute("src") for picture in pictures.all()]
    slider.fill("1")
    expect(page.locator("#media output")).to_have_text("step 20")
    expect(pictures.first).not_to_have_attribute("src", newest[0])
    for picture in pictures.all():
        expect(picture).to_have_js_property("complete", True)
        assert picture.evaluate("image => image.naturalWidth") > 0
    swatches = page.locator("[data-colour-of] .plot-legend i")
    lines = page.locator(".chart .plot-legend .key i")
    expect(lines.nth(1)).to_be_visible()
    colour = "element => getComputedStyle(element).backgroundColor"
    assert swatches.nth(0).evaluate(colour) == lines.nth(0).evaluate(colour) != lines.nth(1).evaluate(colour)
    here.shoot("researcher-compare")
    page.locator("[data-series] a", has_text=FIRST).first.click()


def the_best_run_gets_title_tag_and_notes(here, page):
    expect(page.get_by_role("heading", name=FIRST)).to_be_visible()
    page.get_by_role("button", name="Add title, tags, notes").click()
    page.get_by_label("Title").fill("Best of the search")
    page.get_by_label("Tags").fill("best, paper")
    page.get_by_label("Note", exact=True).fill("the one for the paper")
    page.locator("#about-job").get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="Best of the search")).to_be_visible()
    expect(page.locator(".job-about")).to_contain_text("the one for the paper")
    page.get_by_role("button", name="Star this run").click()
    expect(page.get_by_role("button", name="Star this run")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("link", name="Metrics").click()
    expect(page.locator(".chart canvas")).to_be_visible()
    page.get_by_role("button", name="Add a note").click()
    page.get_by_label("Step", exact=True).last.fill("20")
    page.locator("#note-text").fill("half way")
    page.locator("#step-note").get_by_role("button", name="Save").click()
    notes = page.locator("#step-notes li")
    expect(notes).to_contain_text("half way")
    page.get_by_role("button", name="Edit the note at step 20").click()
    page.locator("#note-text").fill("half of the way")
    page.locator("#step-note").get_by_role("button", name="Save").click()
    expect(notes).to_contain_text("half of the way")
    here.shoot("researcher-best")


def it_is_shared_and_opened_without_a_network(page, here, chromium, shots, tmp_path):
    page.locator("#runs-rows td.main a").first.click()
    with page.expect_download() as downloaded:
        page.get_by_role("link", name="Share").click()
    file = tmp_path / "best.html"
    downloaded.value.save_as(file)
    offline = Watched(chromium, shots, offline=True)
    try:
        offline.page.goto(file.as_uri())
        expect(offline.page.get_by_role("heading", name="Best of the search")).to_be_visible()
        expect(offline.page.get_by_text("the one for the paper")).to_be_visible()
        expect(offline.page.locator(".chart canvas").first).to_be_visible()
        expect(offline.page.locator("#figures img").first).to_have_js_property("complete", True)
        offline.shoot("researcher-shared")
        assert offline.problems == []
    finally:
        offline.context.close()


def test_everything_can_be_done_with_the_keyboard_alone(here):
    page, press = here.page, here.page.keyboard.press
    page.set_viewport_size(WIDE)
    page.goto(f"{here.base}/jobs")
    expect(page.locator("#rows tbody tr").first).to_be_visible()
    press("Tab")
    assert focused(page) == "Skip to content"
    press("?")
    expect(page.locator("#keys")).to_be_visible()
    press("Escape")
    press("g")
    press("r")
    expect(page).to_have_url(re.compile("/runs$"))
    expect(page.locator("#runs-count")).to_have_text("200 runs")
    press("/")
    page.keyboard.type(f"name:{GROUP}")
    expect(page.locator("#runs-count")).to_have_text("5 runs")
    to(page, "Columns")
    press("Enter")
    to(page, "loss.last")
    press("Space")
    expect(page.get_by_role("columnheader", name="loss.last")).to_be_visible()
    press("Escape")
    assert focused(page) == "Columns"
    to(page, "loss.last")
    press("Enter")
    expect(page.get_by_role("columnheader", name="loss.last")).to_have_attribute("aria-sort", "ascending")
    assert focused(page) == "loss.last"
    for name in (f"Choose {FIRST}", f"Choose {SECOND}"):
        to(page, name)
        press("Space")
    to(page, "Compare", back=True)
    press("Enter")
    expect(page.locator(".chart canvas").first).to_be_visible()
    press("Control+k")
    expect(page.get_by_role("combobox", name="Find anything")).to_be_focused()
    page.keyboard.type(SECOND)
    expect(page.get_by_role("option", name=SECOND)).to_have_attribute("aria-selected", "true")
    press("Enter")
    expect(page.get_by_role("heading", name=SECOND)).to_be_visible()
    to(page, "Add title, tags, notes")
    press("Enter")
    page.keyboard.type("By hand")
    press("Enter")
    expect(page.get_by_role("heading", name="By hand")).to_be_visible()
    to(page, "Metrics")
    press("Enter")
    expect(page.locator(".chart canvas")).to_be_visible()
    to(page, "Options of loss")
    press("Enter")
    expect(page.locator("#panel-dialog")).to_be_visible()
    to(page, "Full screen")
    press("Enter")
    expect(page.locator("dialog.full")).to_be_visible()
    press("Escape")
    expect(page.locator("dialog.full")).to_have_count(0)
    assert here.problems == []


def focused(page):
    """What has the focus, as a screen reader names it."""
    return page.evaluate(
        "() => { const e = document.activeElement; return (e.ariaLabel || e.labels?.[0]?.textContent || e.textContent).trim(); }"
    )


def to(page, name, *, back=False):
    """Press Tab until the element with this name has the focus, which must be seen there."""
    for _ in range(120):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if focused(page) == name:
            style = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
            assert style != "none" or page.evaluate("() => document.activeElement.matches('input')"), (
                f"{name}: no focus ring"
            )
            return
    raise AssertionError(f"Tab does not reach {name}; the last was {focused(page)}")


def test_a_walk_on_a_phone(here):
    page = here.page
    page.set_viewport_size(PHONE)
    page.goto(f"{here.base.rpartition('/w/')[0]}/")
    for name in ("Runs", "Jobs", "Datasets", "Machines", "Notifications"):
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("navigation", name="Main").get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
        assert page.evaluate(OVERFLOW) == 0, name
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Runs", exact=True).click()
    page.get_by_label("Query").fill(f"name:{GROUP}")
    expect(page.locator("#runs-count")).to_have_text("5 runs")
    menu(page, "Group")
    page.get_by_role("checkbox", name="Status").check()
    expect(page.locator("#runs-count")).to_have_text("1 group")
    page.get_by_role("checkbox", name="Status").uncheck()
    page.keyboard.press("Escape")
    here.shoot("phone-runs")
    page.locator("#runs-rows td.main a").first.click()
    for tab in ("Metrics", "Logs", "Figures", "Code", "Overview"):
        page.get_by_role("navigation", name="Job").get_by_role("link", name=tab).click()
        expect(page.get_by_role("navigation", name="Job").locator("[aria-current]")).to_be_in_viewport()
        assert page.evaluate(OVERFLOW) == 0, tab
    page.get_by_role("button", name=re.compile("Add title|Edit")).click()
    expect(page.get_by_label("Description")).to_be_in_viewport()
    here.shoot("phone-about")
    page.locator("#about-job").get_by_role("button", name="Cancel").click()
    assert here.problems == []
