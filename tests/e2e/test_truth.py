"""Charts show the logged values at every zoom, and every action can be reached on every screen."""

import re

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from filled import DENSE, dense
from playwright.sync_api import expect
from watched import PHONE, WIDE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
CUT = "[...document.querySelectorAll('main .scroll:not(.virtual)')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"


def test_zooming_in_fetches_the_points_of_that_part_as_they_were_logged(looking, filled):
    page = looking.page
    looking.problems.clear()
    page.set_viewport_size(WIDE)
    page.goto(f"{filled.base}/w/default/jobs/baseline/metrics")
    chart = page.locator("article.chart", has=page.get_by_role("heading", name="dense"))
    over = chart.locator(".u-over")
    over.scroll_into_view_if_needed()
    expect(chart.locator(".plot")).to_have_attribute("aria-label", re.compile(r"^dense: \d{3,} points"))
    box = over.bounding_box()
    at, end, y = box["x"] + 0.5 * box["width"], box["x"] + 0.6 * box["width"], box["y"] + 80
    with page.expect_response(lambda answer: "from=" in answer.url and "name=dense" in answer.url) as answered:
        page.mouse.move(at, y)
        page.mouse.down()
        page.mouse.move(end, y, steps=4)
        page.mouse.up()
    (line,) = [one for one in answered.value.json()["lines"] if one["name"] == "dense"]
    first, last = int(line["x"][0]), int(line["x"][-1])
    assert 0.45 * DENSE < first < last < 0.65 * DENSE
    assert line["x"] == list(range(first, last + 1)) and line["mean"] == [dense(step) for step in line["x"]]
    expect(chart).to_have_class(re.compile("zoomed"))
    looking.shoot("truth-zoomed")
    over.dblclick()
    expect(chart).not_to_have_class(re.compile("zoomed"))
    assert looking.problems == []


@pytest.mark.parametrize("width", [1024, PHONE["width"]])
def test_every_action_of_a_job_is_reachable_on_a_narrow_screen(looking, filled, width):
    page = looking.page
    looking.problems.clear()
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{filled.base}/w/default/jobs")
    row = page.locator("tr[data-name=wider]")
    looking.shoot(f"truth-jobs-{width}")
    assert page.evaluate(CUT) == 0, "the table is cut off"
    more = row.get_by_role("button", name="Actions of wider")
    expect(more).to_be_in_viewport()
    more.click()
    sheet = page.get_by_role("group", name="Actions of wider")
    for name in ("Clone wider", "Resume", "Delete"):
        expect(sheet.get_by_role("link" if name.startswith("Clone") else "button", name=name)).to_be_in_viewport()
    looking.shoot(f"truth-actions-{width}")
    sheet.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Delete wider?")).to_be_visible()
    page.locator("#ask").get_by_role("button", name="Cancel").click()
    assert looking.problems == []


@pytest.mark.parametrize("path", ["jobs/baseline/metrics", "jobs/baseline/system", "runs"])
def test_requests_that_get_no_answer_are_no_error_of_the_page(looking, filled, path):
    page = looking.page
    looking.problems.clear()
    page.set_viewport_size(WIDE)
    page.goto(f"{filled.base}/w/default/{path}")
    page.wait_for_load_state("networkidle")
    lost = []
    page.route(re.compile(r"(api/v1/|system\.json)"), lambda route: (lost.append(route.request.url), route.abort()))
    try:
        page.evaluate(
            "for (const kind of ['shoal:metrics', 'shoal:tick', 'shoal:end']) document.body.dispatchEvent(new Event(kind))"
        )
        with page.expect_event("requestfailed"):
            pass
        page.wait_for_load_state("networkidle")
    finally:
        page.unroute_all()
    assert lost and looking.problems == []
