"""The table of runs, and lists from which trials and preflights are folded away."""

from web_run import Run

from shoal.core.runs import RunChange, RunsViewSave
from shoal.server.runs import changes, saved_views

XSS = "<script>alert(1)</script>"


def test_the_page_offers_the_tags_of_the_workspace_and_its_twin_its_columns_and_views(browser, ctx, anna):
    Run(ctx, anna, entry=["train.py", "--lr", "0.1", "--seed", "3"]).steps(0, 2, loss=lambda i: 1.0)
    changes.change(ctx, anna.access(), RunChange(jobs=["a-job"], add_tags=["ablation"], title=XSS))
    saved_views.save(ctx, anna.access(), "best", RunsViewSave(q="tag:ablation"))
    page = browser.get("/w/default/runs").text
    assert '<option value="ablation">' in page and XSS not in page
    twin = browser.get("/w/default/runs.json?q=tag:ablation").json()
    assert (twin["columns"]["params"], twin["columns"]["metrics"]) == (["lr", "seed"], ["loss"])
    assert [view["name"] for view in twin["views"]] == ["best"]
    assert [row["name"] for row in twin["runs"]] == ["a-job"]


def test_trials_and_preflights_are_in_the_list_of_jobs_only_if_asked_for(browser, ctx, anna):
    Run(ctx, anna, "mine")
    Run(ctx, anna, "s-1", env={"SHOAL_SWEEP": "s"})
    Run(ctx, anna, "p-1", env={"SHOAL_PREFLIGHT": "1"})

    def listed(query=""):
        return {job["name"] for job in browser.get(f"/w/default/jobs.json{query}").json()["jobs"]}

    assert listed() == {"mine"}
    assert listed("?kind=trial") == {"s-1"} and listed("?kind=preflight") == {"p-1"}
    assert listed("?kind=any") == {"mine", "s-1", "p-1"}
    home = browser.get("/", headers={"Accept": "application/json"}).json()
    assert [p["job"]["name"] for p in home["active"]] == ["mine"] and home["trials"] == {"queued": 1}
    assert "Also 1 trial queued" in browser.get("/").text


def test_runs_are_changed_from_the_browser_only_by_our_own_pages(browser, ctx, anna):
    Run(ctx, anna)
    path, body = "/api/v1/workspaces/default/runs", {"jobs": ["a-job"], "add_tags": ["x"]}
    own = browser.request("PATCH", path, json=body, headers={"Origin": browser.base})
    assert own.status_code == 200 and own.json()[0]["tags"] == ["x"]
    other = browser.request("PATCH", path, json=body, headers={"Origin": "https://evil.example"})
    assert other.status_code == 403
