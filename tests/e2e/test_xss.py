"""Hostile texts in every place where one can be stored or typed: they are shown as they are, and nothing of them runs."""

import json
import re
from urllib.parse import quote

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from corpus import ANSI, CORPUS, HOSTILE, NAME
from pages import settled
from playwright.sync_api import expect

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def page(beside_mallory):
    """Fails the test for whatever ran, asked or was refused by the policy while it used the page."""
    beside_mallory.problems.clear()
    yield beside_mallory.page
    assert beside_mallory.problems == []


def shown(page):
    """All text of a page, of closed parts and of fields too."""
    fields = "[...document.querySelectorAll('input, textarea, option')].map((e) => e.value)"
    return page.evaluate(f"[document.body.textContent, document.title, ...{fields}].join('\\n')")


def test_every_page_shows_hostile_names_as_text(page, filled):
    w = filled.bad
    job, worse = f"{w}/jobs/{filled.jobs['bad']}", f"{w}/jobs/{filled.jobs['worse']}"
    looked_at = [
        "/", "/workspaces", "/settings", "/keys", "/admin", "/usage", f"{w}/jobs", f"{w}/members", f"{w}/secrets",
        f"{w}/checkpoints", f"{w}/datasets", f"{w}/jobs/new?from={filled.jobs['bad']}", f"{w}/compare?jobs={filled.jobs['bad']},{filled.jobs['worse']}",
        job, worse, f"{worse}/metrics", f"{worse}/logs", f"{job}/checkpoints", f"{worse}/figures", f"{worse}/code", f"{job}/system",
        f"{w}/datasets/{filled.datasets['bad']}", f"{w}/sweeps", f"{w}/sweeps/{filled.sweep}", f"{w}/sweeps/new?job={filled.jobs['bad']}",
        f"{w}/sweeps/new?from={filled.sweep}", f"{w}/swarms/{filled.swarm}",
    ]  # fmt: skip
    told = {
        "/",
        "/settings",
        "/keys",
        "/admin",
        job,
        f"{worse}/code",
        f"{worse}/logs",
        f"{worse}/figures",
        f"{w}/checkpoints",
        f"{w}/sweeps/{filled.sweep}",
        f"{w}/sweeps/new?from={filled.sweep}",
        f"{w}/swarms/{filled.swarm}",
    }
    for address in looked_at:
        settled(page, filled.base + address)
        assert NAME in shown(page), address
        if address in told:
            assert HOSTILE in shown(page), address


def test_metrics_and_config_are_text(page, filled):
    job = f"{filled.base}{filled.bad}/jobs/{filled.jobs['bad']}"
    settled(page, f"{job}/metrics")
    expect(page.locator(".chart h2", has_text=HOSTILE)).to_be_visible()
    page.locator("#metric-search").fill(HOSTILE)
    expect(page.locator(".chart:visible")).to_have_count(1)
    settled(page, f"{job}/code")
    assert HOSTILE + "bad" in shown(page)
    compared = f"{filled.base}{filled.bad}/compare?all=1&jobs={filled.jobs['bad']},{filled.jobs['worse']}"
    settled(page, compared)
    assert HOSTILE + "worse" in shown(page)


def test_the_log_is_text_with_colours_and_nothing_else(page, filled):
    settled(page, f"{filled.base}{filled.bad}/jobs/{filled.jobs['bad']}/logs")
    log = page.locator("#log")
    lines = log.locator(".tx").all_text_contents()
    for text in CORPUS:
        assert re.sub("[\u202a-\u202e\u2066-\u2069]", "", text) in lines, text
    for _, text in ANSI:
        assert any(line.startswith(text) for line in lines), text
    assert set(log.evaluate("e => [...e.querySelectorAll('*')].map((x) => x.tagName)")) == {"DIV", "TIME", "SPAN"}
    expect(log.locator(".a31", has_text="ran(20)")).to_be_visible()
    page.get_by_label("Search the log").fill("<svg onload")
    expect(page.locator("#log-note")).to_have_text("1 line")
    log.locator(".ln").first.click()
    expect(log.locator(".ln.mark")).to_contain_text(CORPUS[2])
    page.get_by_role("button", name="First error").click()
    expect(log.locator(".ln.mark")).to_contain_text(HOSTILE)


def test_files_are_shown_never_opened(page, filled):
    for place, names in (
        (f"{filled.bad}/datasets/{filled.datasets['bad']}", ["table.csv", "page.html", "a.svg", "fake.png", "texts.json"]),
        (f"{filled.bad}/jobs/{filled.jobs['bad']}/code", ["train.py", "a.svg", "a.html"]),
    ):  # fmt: skip
        for name in names:
            settled(page, f"{filled.base}{place}?file={name}")
            if name != "fake.png":
                expect(page.locator(".view")).to_contain_text("<" if name == "table.csv" else "ran(")
        links = page.locator(".tree a").all()
        assert len(links) >= 7
        for index, text in enumerate(CORPUS[:6]):
            page.goto(f"{filled.base}{place}")
            page.locator(".tree a", has_text=f"{index:02} ").first.click()
            expect(page.locator(".view pre")).to_contain_text(text)


def test_figures_and_tables_are_text(page, filled):
    settled(page, f"{filled.base}{filled.bad}/jobs/{filled.jobs['bad']}/figures")
    for name in (HOSTILE, CORPUS[2], CORPUS[3]):
        expect(page.locator(".figure", has_text=name).first).to_be_visible()
    cells = page.locator(".figure td").all_text_contents()
    assert set(CORPUS) <= {*cells}
    assert page.locator("main script, main iframe, main svg[onload], main object").count() == 0


def test_what_is_typed_and_what_is_in_the_address_is_text(page, filled):
    base, w = filled.base, filled.bad
    page.goto(f"{base}{w}/jobs?search={quote(HOSTILE)}")
    expect(page.get_by_label("Search jobs by name or id")).to_have_value(HOSTILE)
    for address in (
        f"/w/{quote(HOSTILE, safe='')}/jobs", f"{w}/jobs/{quote(HOSTILE, safe='')}", f"/{quote(HOSTILE, safe='')}",
        f"{w}/datasets/{filled.datasets['bad']}?file={quote(HOSTILE)}", f"{w}/datasets/{filled.datasets['bad']}?folder={quote(HOSTILE)}",
        f"{w}/jobs?status={quote(HOSTILE)}", f"{w}/jobs?before={quote(HOSTILE)}",
        f"{w}/compare?jobs={quote(HOSTILE)}", f"{w}/jobs/new?from={quote(HOSTILE)}",
        f"{w}/sweeps/{quote(HOSTILE, safe='')}", f"{w}/sweeps/new?job={quote(HOSTILE)}", f"{w}/sweeps/{filled.sweep}?order={quote(HOSTILE)}",
        f"{w}/jobs/bad/figures/one?name={quote(HOSTILE)}&type=x", f"/sign-in?next={quote('javascript:ran(70)')}",
        f"/sign-in?next={quote('//example.org/' + HOSTILE)}",
    ):  # fmt: skip
        page.goto(base + address)
        assert page.locator("h1").count() == 1, address
    page.goto(f"{base}{w}/members")
    page.get_by_label("E-mail of their account").fill("a@b")
    page.goto(f"{base}{w}/secrets")
    page.get_by_label("Name", exact=True).fill(HOSTILE)
    page.get_by_label("Value").fill(HOSTILE)
    page.locator("form", has=page.get_by_label("Value")).evaluate("form => { form.noValidate = true; }")
    page.get_by_role("button", name="Set").click()
    expect(page.locator(".form-error:not(:empty), .toast").first).to_be_visible()
    page.goto(f"{base}{w}/jobs/new")
    page.get_by_label("All of them in one line").fill(HOSTILE + " '")
    expect(page.locator("#preview")).to_contain_text(re.compile("quot", re.IGNORECASE))


def test_charts_of_a_sweep_are_text(page, filled):
    settled(page, f"{filled.base}{filled.bad}/sweeps/{filled.sweep}")
    assert {HOSTILE, "text"} <= set(page.locator("#scatter-x option").all_text_contents())
    page.locator("#scatter-x").select_option("text")
    page.locator("#best-so-far svg").hover(position={"x": 90, "y": 120})
    page.locator("#parallel .handle").first.press("ArrowUp")
    expect(page.locator("#trial-shown")).to_contain_text("in the chosen ranges")
    page.goto(f"{filled.base}{filled.bad}/sweeps/new")
    page.get_by_label("Name of a parameter").fill(HOSTILE)
    page.get_by_label("Values of the parameter").fill(HOSTILE)
    expect(page.locator("#param-rows .told")).to_contain_text("NAME=VALUES")


def test_a_shared_file_of_it_is_text_too(page, filled, beside_mallory, tmp_path):
    job = f"{filled.base}{filled.bad}/jobs/{filled.jobs['worse']}"
    page.goto(job)
    with page.expect_download() as download:
        page.get_by_role("link", name="Share").click()
    download.value.save_as(tmp_path / "run.html")
    beside_mallory.context.set_offline(True)
    try:
        page.goto((tmp_path / "run.html").as_uri())
        assert HOSTILE in shown(page)
        expect(page.locator("canvas").first).to_be_visible()
    finally:
        beside_mallory.context.set_offline(False)


def test_media_opened_by_itself_runs_nothing(beside_mallory, filled):
    """The cage is what refuses here, so that what it says about it is no problem."""
    page, api = beside_mallory.page, f"{filled.base}/api/v1/workspaces/{filled.hostile}/jobs/{filled.jobs['bad']}"
    beside_mallory.problems.clear()
    kinds = json.loads(page.request.get(f"{api}/media").text())
    drawings = [m["id"] for m in kinds if m["mime"] == "image/svg+xml"]
    assert drawings
    page.goto(f"{api}/media/{drawings[0]}")
    assert page.evaluate("document.documentElement.tagName") == "svg"
    picture = page.goto(f"{filled.base}{filled.bad}/datasets/{filled.datasets['bad']}/picture?file=fake.png")
    assert picture.headers["content-security-policy"].endswith("sandbox")
    assert not [problem for problem in beside_mallory.problems if problem.startswith(("ran", "dialog"))]
    beside_mallory.problems.clear()
