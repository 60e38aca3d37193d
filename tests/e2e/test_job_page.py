"""The pages of one job: what one sees first, and several ranks' logs."""

PINNED = {"panels": {"m:accuracy": {"pinned": True}}}


def test_the_overview_has_numbers_main_curves_and_the_end_of_the_log(looking, filled):
    page = looking.page
    page.goto(f"{filled.base}/w/default/jobs/baseline")
    first = page.locator("#numbers .card").first
    assert (first.locator("span").text_content(), first.locator("b").text_content()) == ("train/loss", "0.2358")
    page.locator("#main-charts .chart canvas").first.wait_for()
    assert page.locator("#main-charts h2").all_text_contents() == ["train/loss", "accuracy"]
    page.locator("#tail .ln", has_text="step  299").wait_for()
    at_end = "tail => tail.scrollHeight - tail.scrollTop - tail.clientHeight < 2"
    assert page.locator("#tail").evaluate(at_end)
    page.get_by_role("button", name="train/loss under Metrics").click()
    page.locator("dialog.full canvas").wait_for()
    assert looking.problems == []


def test_the_overview_shows_the_charts_that_are_pinned(looking, filled):
    page = looking.page
    page.route("**/chart-layouts/job", lambda route: route.fulfill(json={"mine": PINNED, "shared": None}))
    try:
        page.goto(f"{filled.base}/w/default/jobs/baseline")
        page.locator("#main-charts .chart canvas").first.wait_for()
        assert page.locator("#main-charts h2").all_text_contents() == ["accuracy"]
    finally:
        page.unroute("**/chart-layouts/job")
