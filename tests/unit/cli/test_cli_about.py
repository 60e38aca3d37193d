"""`shoal training tag`, `note`, `title`, `star`, `archive` and `query`, against a scripted server."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from clirun import Cli
from stubserver import Stub, reply

RUNS, VIEWS, NOTES = "/workspaces/default/runs", "/workspaces/default/run-views", "/workspaces/default/jobs/hello/notes"
NOTE = {
    "id": 3,
    "step": 500,
    "text": "warm-up ends",
    "created_by": "ada@example.org",
    "created_at": "2026-01-31T12:00:00.000Z",
}
VIEW = {
    "name": "ablations", "q": "tag:ablation", "sort": "loss.min", "columns": ["lr"], "group": [],
    "created_by": "ada@example.org", "created_at": "2026-01-31T12:00:00Z",
}  # fmt: skip
ABOUT = {
    "id": "job_1", "name": "hello", "tags": ["ablation"], "title": "", "description": "", "note": "", "starred": False,
    "archived": False,
}  # fmt: skip
ROW = {
    "id": "job_1", "name": "hello", "title": "Wide net", "kind": "job", "status": "failed", "user": "ada@example.org",
    "tags": ["ablation"], "starred": True, "archived": False, "created_at": "2026-01-31T12:00:00Z", "duration_s": 3.5,
    "values": {"lr": 0.001, "loss.min": None},
}  # fmt: skip
SPREAD = {"mean": 1.5, "std": 0.25, "min": 1.0, "max": 2.0, "count": 3}
GROUP = {"key": {"lr": 0.001}, "runs": 3, "ids": ["job_1"], "values": {"loss.min": SPREAD}}


@pytest.fixture
def runs(stub: Stub) -> Stub:
    stub.routes = {
        f"PATCH {RUNS}": reply(body=[ABOUT]),
        f"GET {RUNS}/query": reply(body={"rows": [ROW], "total": 7, "columns": ["lr", "loss.min"]}),
        f"GET {RUNS}/csv": reply(body="id,name\njob_1,hello\n"),
        f"GET {NOTES}": reply(body=[NOTE]),
        f"POST {NOTES}": reply(body={"kind": "note", "step": 500, "at": 1.0, "text": "warm-up ends"}),
        f"DELETE {NOTES}/3": reply(204),
        f"GET {VIEWS}": reply(body=[VIEW]),
        f"GET {VIEWS}/ablations": reply(body=VIEW),
        f"PUT {VIEWS}/ablations": reply(body=VIEW),
        f"DELETE {VIEWS}/ablations": reply(204),
    }
    return stub


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["tag", "hello", "other", "--add", "a", "--add", "b"], {"jobs": ["hello", "other"], "add_tags": ["a", "b"]}),
        (["tag", "hello", "--remove", "a"], {"jobs": ["hello"], "remove_tags": ["a"]}),
        (["note", "hello", "too slow"], {"jobs": ["hello"], "note": "too slow"}),
        (["title", "hello", "Base", "--description", "d"], {"jobs": ["hello"], "title": "Base", "description": "d"}),
        (["star", "hello"], {"jobs": ["hello"], "starred": True}),
        (["star", "hello", "--remove"], {"jobs": ["hello"], "starred": False}),
        (["archive", "hello"], {"jobs": ["hello"], "archived": True}),
        (["archive", "hello", "--undo"], {"jobs": ["hello"], "archived": False}),
    ],
)
def test_only_what_is_given_is_changed(runs: Stub, cli: Cli, words: list[str], sent: dict[str, object]) -> None:
    found = cli("training", *words, "--json")
    assert found.code == 0 and json.loads(found.out) == [ABOUT]
    body = json.loads(runs.asked[-1].body)
    nothing = {"add_tags": [], "remove_tags": []}
    assert {k: v for k, v in body.items() if v is not None and v != nothing.get(k)} == sent


def test_bad_tags_and_no_tags_are_refused_before_anything_is_sent(runs: Stub, cli: Cli) -> None:
    assert "not a tag" in cli("training", "tag", "hello", "--add", "two words").err
    assert cli("training", "tag", "hello").code == 2
    assert cli("training", "star").code == 2
    assert not [a for a in runs.asked if a.method == "PATCH"]


def test_notes_at_steps_are_written_listed_and_deleted(runs: Stub, cli: Cli) -> None:
    written = cli("training", "note", "hello", "warm-up ends", "--step", "500")
    sent = next(a for a in runs.asked if a.method == "POST")
    assert json.loads(sent.body) == {"step": 500, "text": "warm-up ends"} and "warm-up ends" in written.out
    assert json.loads(cli("training", "notes", "hello", "--json").out) == [NOTE]
    cli("training", "notes", "hello", "--delete", "3")
    assert [a.path for a in runs.asked if a.method == "DELETE"] == [f"/api/v1{NOTES}/3"]
    empty = cli("training", "note", "hello", " ", "--step", "500")
    assert empty.code == 2 and "training notes hello --delete" in empty.err


def test_a_query_is_saved_as_a_view_and_shown_again(runs: Stub, cli: Cli) -> None:
    assert "Saved as ablations" in cli("training", "query", "tag:ablation", "--column", "lr", "--save", "ablations").err
    sent = next(a for a in runs.asked if a.method == "PUT")
    assert json.loads(sent.body) == {"q": "tag:ablation", "sort": "", "columns": ["lr"], "group": [], "charts": {}}
    cli("training", "query", "--view", "ablations", "--sort", "name")
    asked = parse_qs(urlsplit(runs.asked[-1].path).query)
    assert (asked["q"], asked["column"], asked["sort"]) == (["tag:ablation"], ["lr"], ["name"])
    assert "ablations" in cli("training", "views").out
    cli("training", "views", "--delete", "ablations")
    assert [a.path for a in runs.asked if a.method == "DELETE"] == [f"/api/v1{VIEWS}/ablations"]


def test_a_query_shows_rows_groups_json_and_csv(runs: Stub, cli: Cli) -> None:
    shown = cli("training", "query", "lr>1e-4", "--column", "lr", "--column", "loss.min", "--sort", "loss.min")
    assert "* Wide net" in shown.out and "0.001" in shown.out and "1 of 7 runs" in shown.err
    asked = parse_qs(urlsplit(runs.asked[-1].path).query)
    assert (asked["q"], asked["column"], asked["sort"]) == (["lr>1e-4"], ["lr", "loss.min"], ["loss.min"])
    assert json.loads(cli("training", "query", "--json").out)["rows"][0]["name"] == "hello"
    runs.routes[f"GET {RUNS}/query"] = reply(body={"rows": [], "groups": [GROUP], "total": 1, "columns": ["loss.min"]})
    assert "1.5 ± 0.25" in cli("training", "query", "--group=-seed", "--column", "loss.min").out
