"""The pages of one job: what one sees first, and several ranks' logs."""

LAST_SEEN_TOGETHER = """() => {
    const ends = [...document.querySelectorAll("#log.beside .lines")].map((lines) => {
        const bottom = lines.getBoundingClientRect().bottom;
        return [...lines.children].findLast((row) => row.getBoundingClientRect().top < bottom - 4).at;
    });
    return ends[0] < 1e12 && Math.abs(ends[0] - ends[1]) <= 10;
}"""
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
    page.wait_for_function(f"({at_end})(document.getElementById('tail'))")
    with page.expect_response("**/w/default/jobs/baseline"):
        page.evaluate("document.body.dispatchEvent(new Event('shoal:state'))")
    page.locator("#main-charts .chart canvas").first.wait_for()
    page.wait_for_function(f"({at_end})(document.getElementById('tail'))")
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


def test_ranks_are_read_side_by_side_and_scroll_together(looking, filled):
    page = looking.page
    page.set_viewport_size({"width": 1280, "height": 600})
    page.goto(f"{filled.base}/w/default/jobs/baseline/logs")
    page.locator("#log > .ln").first.wait_for()
    page.locator("#log-rank").select_option("beside")
    columns = page.locator("#log.beside .lines")
    page.locator("#log.beside .lines >> nth=1").locator(".ln", has_text="step  299").wait_for()
    told = [set(column.locator(".who").all_text_contents()) for column in columns.all()]
    assert told == [{"rank 0"}, {"rank 1"}]
    columns.first.hover()
    columns.first.evaluate("lines => { lines.scrollTop = lines.scrollHeight / 2; }")
    page.wait_for_function(LAST_SEEN_TOGETHER)
    page.locator("#log.beside select").first.select_option("1")
    columns.first.locator(".who", has_text="rank 1").first.wait_for(state="attached")
    page.locator("#log-rank").select_option("")
    page.locator("#log:not(.beside) > .ln").first.wait_for()
    assert looking.problems == []
