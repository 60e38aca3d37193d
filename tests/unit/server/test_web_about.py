"""What people write about a run, on its page: title, tags, note, description, star, archive; shown wherever the run is."""

import pytest
from sqlalchemy import select
from web_browser import Browser

from shoal.core.people import Role
from shoal.core.runs import RunChange
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Job
from shoal.server.runs import changes
from shoal.testing.server import add_job, add_member, add_person

HTMX = {"HX-Request": "true"}
PAGE = "/w/default/jobs/a-job"
WRITTEN = {
    "title": " Wide <b>net</b> ", "tags": "ablation, wide  old", "note": "diverges <i>", "description": "Two\nlines & more.",
    "archived": "no",
}  # fmt: skip


@pytest.fixture
def browser(app, ctx, anna):
    add_job(ctx, anna)
    return Browser(app).enter(ctx, anna)


def job(ctx):
    with ctx.db.read() as session:
        return session.scalars(select(Job).where(Job.name == "a-job")).one()


def test_title_tags_note_and_description_are_written_on_the_page_and_shown_there(browser, ctx, anna):
    saved = browser.post(f"{PAGE}/about", WRITTEN, headers=HTMX)
    assert saved.status_code == 204 and "shoal:changed" in saved.headers["hx-trigger"]
    found = job(ctx)
    assert (found.title, found.note, found.description) == ("Wide <b>net</b>", "diverges <i>", "Two\nlines & more.")
    assert found.tags == ["ablation", "wide", "old"] and found.archived_at is None
    page = browser.get(PAGE).text
    assert (
        "<h1>Wide &lt;b&gt;net&lt;/b&gt;</h1>" in page
        and "diverges &lt;i&gt;" in page
        and "Two\nlines &amp; more." in page
    )
    assert 'href="/w/default/runs?q=tag%3Aablation"' in page and '<code class="muted">a-job</code>' in page
    add_job(ctx, anna, name="b-job")
    for path in ("/", "/w/default/jobs", "/w/default/compare?jobs=a-job,b-job"):
        assert "Wide &lt;b&gt;net&lt;/b&gt;" in browser.get(path).text, path


def test_tags_left_out_are_removed_and_fields_left_out_stay(browser, ctx):
    browser.post(f"{PAGE}/about", WRITTEN)
    browser.post(f"{PAGE}/about", {"tags": "wide new", "title": ""})
    assert (job(ctx).tags, job(ctx).title, job(ctx).note) == (["wide", "new"], "", "diverges <i>")
    browser.post(f"{PAGE}/about", {"note": "", "archived": "yes"})
    assert (job(ctx).tags, job(ctx).note) == (["wide", "new"], "") and job(ctx).archived_at is not None
    assert "archived" in browser.get(PAGE).text


def test_a_bad_tag_is_refused_and_nothing_is_changed(browser, ctx):
    refused = browser.post(f"{PAGE}/about", {"title": "New", "tags": 'a"b'}, headers=HTMX)
    assert refused.status_code == 422 and "tag" in refused.json()["error"]["message"]
    assert (job(ctx).title, job(ctx).tags) == ("", [])


def test_a_star_comes_and_goes(browser, ctx):
    browser.post(f"{PAGE}/star")
    assert job(ctx).starred and 'aria-pressed="true" aria-label="Star this run"' in browser.get(PAGE).text
    browser.post(f"{PAGE}/star")
    assert not job(ctx).starred


def test_viewers_read_what_is_written_and_write_nothing(browser, app, ctx, anna):
    browser.post(f"{PAGE}/about", WRITTEN)
    browser.post(f"{PAGE}/star")
    viewer = add_person(ctx, "vera@example.org")
    add_member(ctx, anna.workspace_id, viewer, Role.VIEWER)
    hers = Browser(app).enter(ctx, viewer)
    path = f"/w/{anna.workspace_id}/jobs/a-job"
    page = hers.get(path).text
    assert "Wide &lt;b&gt;net" in page and "diverges" in page and "★" in page and "about-job" not in page
    for route in ("about", "star"):
        assert hers.post(f"{path}/{route}", {"title": "Hers"}).status_code == 403
    assert job(ctx).title == "Wide <b>net</b>"


def test_a_shared_file_has_title_tags_and_notes_without_secrets(browser, ctx, anna):
    from shoal.core.people import SecretSet
    from shoal.server.people import secrets
    from shoal.server.web.job import share

    secrets.set_secret(ctx, anna.access(), SecretSet(name="TOKEN", value="hf_planted-value"))
    texts = {"title": "Best hf_planted-value", "note": "see hf_planted-value", "description": "hf_planted-value"}
    changes.change(ctx, anna.access(), RunChange(jobs=["a-job"], add_tags=["good"], **texts))
    body = share.share(ctx, anna.access(), "a-job").body.decode()
    assert "Best ***" in body and ">good</span>" in body and "hf_planted-value" not in body
    assert jobs.get(ctx, anna.access(), "a-job").title == texts["title"]
