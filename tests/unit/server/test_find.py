"""Search over everything: by name, title or tag, in all of one's workspaces and in nobody else's."""

from web_node import needs_node, run_node
from web_run import Run
from web_sweeps import add_sweep

from shoal.core.runs import RunChange
from shoal.server.runs import changes, find


def names(ctx, person, text):
    return [one.name for one in find.find(ctx, person.access().principal, text)]


def test_things_are_found_by_name_title_and_tag_the_best_first(ctx, anna, berta):
    for name in ("wide", "wider", "not-wide", "other"):
        Run(ctx, anna, name)
    Run(ctx, anna, "wide-trial", env={"SHOAL_SWEEP": "s"})
    Run(ctx, berta, "wide-hers")
    add_sweep(ctx, anna, "wide-sweep")
    changes.change(ctx, anna.access(), RunChange(jobs=["other"], title="Wide 100% net", add_tags=["best"]))
    found = names(ctx, anna, "WIDE")
    assert found[0] == "wide" and set(found) == {"wide", "wider", "not-wide", "other", "wide-sweep"}
    assert names(ctx, anna, "net wide") == ["other"] and names(ctx, anna, "best") == ["other"]
    assert names(ctx, anna, "100%") == ["other"] and names(ctx, anna, "%") == ["other"]


def test_what_is_found_has_a_page(browser, ctx, anna):
    Run(ctx, anna, "wide")
    (one,) = find.find(ctx, anna.access().principal, "wide")
    assert browser.get(one.path).status_code == 200 and one.status == "queued"


@needs_node
def test_pages_are_found_by_their_letters(tmp_path):
    script = 'import { fit } from "./palette.js"; console.log(JSON.stringify([fit("Runs", "runs"), fit("New job", "nj"), fit("New job", "x"), fit("API keys", "keys")]))'
    exact, letters, none, inside = run_node(tmp_path, script)
    assert exact == 1 and none is None and exact < inside < letters
