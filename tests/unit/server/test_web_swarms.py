"""The pages of swarms: who takes part and what each gave, rounds for the charts, the way in, what one can do."""

import re
import shlex

import pytest
from web_browser import Browser
from web_drafts import HTMX
from web_swarms import add_swarm

from shoal.cli.main import app
from shoal.cli.shared.aliases import expand
from shoal.core.people import Role
from shoal.core.swarm import SwarmSpec
from shoal.server.swarms import invitations as swarm_invitations
from shoal.server.swarms import service as swarms
from shoal.server.web import swarms as web
from shoal.server.web.drafts.new_swarm import swarm_command
from shoal.testing.server import add_member, add_source

FISH = "/w/default/swarms/fish"


def test_the_page_tells_how_it_goes_and_who_gave_how_much(browser, ctx, anna):
    ident = add_swarm(ctx, anna)
    page, data = browser.get(FISH), browser.get(f"{FISH}.json").json()
    assert page.status_code == 200
    assert [(p["name"], p["share"]) for p in data["peers"]] == [
        ("gpu-box", 0.6), ("laptop", 0.15), ("colab", 0.0), ("old-one", 0.25),
    ]  # fmt: skip
    assert data["here"] == 3 and "of 4 that ever joined" in page.text
    assert "NVIDIA A10" in page.text and "outbound only" in page.text and "410.5 a second" in page.text
    listing = browser.get("/w/default/swarms").text
    assert ident in listing and "fish" in listing and "10,000" in listing


def test_the_charts_get_every_round_in_columns(browser, ctx, anna):
    add_swarm(ctx, anna, rounds=12)
    rounds = browser.get(f"{FISH}.json").json()["rounds"]
    assert rounds["total"] == 12 and rounds["round"] == list(range(1, 13))
    assert rounds["loss"] == sorted(rounds["loss"], reverse=True)
    assert {len(rounds[name]) for name in ("loss", "performance", "alive", "seconds", "bytes", "averaged")} == {12}


def test_of_many_rounds_the_first_and_the_newest_are_drawn(monkeypatch):
    monkeypatch.setattr(web, "MOST_ROUNDS", 10)
    assert web.thin(range(10)) == list(range(10))
    some = web.thin(range(1000))
    assert (len(some), some[0], some[-1]) == (10, 0, 999) and some == sorted(set(some))


@pytest.mark.parametrize(
    ("part", "held"), [("head", "Peers"), ("peers", "gpu-box"), ("more", "Invitations"), ("nonsense", None)]
)
def test_the_parts_of_the_page_load_by_themselves(browser, ctx, anna, part, held):
    add_swarm(ctx, anna)
    answer = browser.get(f"{FISH}?part={part}", headers=HTMX)
    assert answer.status_code == (200 if held else 422)
    assert held is None or (held in answer.text and "<html" not in answer.text)


def test_an_invitation_is_shown_once_as_a_command_to_copy_and_can_be_revoked(browser, ctx, anna):
    add_swarm(ctx, anna)
    made = browser.post(f"{FISH}/invite", {"name": "lab", "days": "30", "max_peers": "5"}, headers=HTMX)
    assert made.status_code == 201
    command = made.text.split('data-copy="')[1].split('"')[0]
    assert command.startswith("shoal swarm join http://127.0.0.1:8000/join/")
    assert (
        swarm_invitations.guest(ctx, command.rpartition("/")[2]).swarm_id == swarms.get(ctx, anna.access(), "fish").id
    )
    token = command.rpartition("/")[2]
    assert token not in browser.get(FISH).text and token not in browser.get(f"{FISH}.json").text
    [lab, _] = swarm_invitations.list_invitations(ctx, anna.access(), "fish")
    assert (lab.name, lab.max_peers) == ("lab", 5)
    assert browser.post(f"{FISH}/revoke", {"invitation": lab.id}).headers["location"] == FISH
    assert "revoked" in browser.get(f"{FISH}?part=more", headers=HTMX).text


@pytest.mark.parametrize("form", [{"name": "no/name"}, {"max_peers": "0"}, {"max_peers": "some"}, {"days": "9999"}])
def test_an_invitation_that_cannot_be_is_refused_in_one_line(browser, ctx, anna, form):
    add_swarm(ctx, anna)
    refused = browser.post(f"{FISH}/invite", form, headers=HTMX)
    assert refused.status_code in (400, 422) and "\n" not in refused.json()["error"]["message"]


def test_a_peer_is_sent_away_for_good(browser, ctx, anna):
    add_swarm(ctx, anna)
    peer = next(p for p in browser.get(f"{FISH}.json").json()["peers"] if p["name"] == "laptop")
    gone = browser.post(f"{FISH}/kick", {"peer": peer["id"]}, headers=HTMX)
    assert gone.status_code == 204 and "laptop was removed" in gone.headers["hx-trigger"]
    part = browser.get(f"{FISH}?part=peers", headers=HTMX).text
    assert 'class="status kicked"' in part and "Remove laptop" not in part and "Remove gpu-box" in part
    assert browser.post(f"{FISH}/kick", {"peer": "nobody"}, headers=HTMX).status_code == 404


def test_a_running_swarm_is_stopped_and_a_stopped_one_goes_on_or_is_deleted(browser, ctx, anna):
    add_swarm(ctx, anna)
    assert browser.post(f"{FISH}/delete", headers=HTMX).status_code == 409
    assert ">Invite<" in browser.get(FISH).text
    assert "Stopping fish" in browser.post(f"{FISH}/stop", headers=HTMX).headers["hx-trigger"]
    head = browser.get(f"{FISH}?part=head", headers=HTMX).text
    assert "Resume" in head and "Delete" in head and "stopped by anna@example.org" in head
    add_swarm(ctx, anna, "alone", peers=[], state="stopped")
    assert browser.post("/w/default/swarms/alone/resume").headers["location"] == "/w/default/swarms/alone"
    assert swarms.get(ctx, anna.access(), "alone").status == "running"
    assert browser.post(f"{FISH}/delete", {"then": "list"}).headers["location"] == "/w/default/swarms"
    assert browser.get(FISH).status_code == 404


def test_a_viewer_looks_and_changes_nothing(app, ctx, anna, berta):
    add_swarm(ctx, anna)
    add_member(ctx, anna.workspace_id, berta, Role.VIEWER)
    hers = Browser(app).enter(ctx, berta)
    base = f"/w/{anna.workspace_id}/swarms/fish"
    page = hers.get(base)
    assert page.status_code == 200 and not {">Invite<", "Remove gpu-box", ">Stop<"} & set(page.text.split())
    assert "data-open" not in page.text
    for action in ("stop", "resume", "delete", "invite", "kick", "revoke"):
        assert hers.post(f"{base}/{action}").status_code == 403, action


def test_an_empty_swarm_says_how_to_invite_and_a_workspace_without_one_how_to_begin(browser, ctx, anna):
    assert "shoal swarm create hello" in browser.get("/w/default/swarms").text
    add_swarm(ctx, anna, rounds=0, peers=[])
    page = browser.get(FISH)
    assert page.status_code == 200 and "shoal swarm invite fish" in page.text


def test_a_swarm_is_created_by_the_form_which_shows_the_line_to_join_once(browser, ctx, anna, monkeypatch):
    monkeypatch.setattr(swarms, "find_spec", lambda name: object())  # hivemind is not used here
    source = add_source(ctx, anna)
    form = {"name": "reef", "source_id": source, "entry": "train.py", "line": "--lr 0.1", "target_batch_size": "512",
            "mode": "local-steps", "local_steps": "20", "trust": "open", "public": "on", "env_name": "A", "env_value": "b c"}  # fmt: skip
    shown = browser.post("/w/default/swarms/new/preview", form, headers=HTMX).text
    assert "shoal swarm create reef" in re.sub(r"</?span>", "", shown)
    made = browser.post("/w/default/swarms/new", form, headers=HTMX)
    assert made.status_code == 201 and made.headers["HX-Retarget"] == ".cols.draft", made.text
    assert "shoal swarm join " in made.text and "/w/default/swarms/reef" in made.text
    [one] = swarms.summaries(ctx, anna.access())
    spec = swarms.get(ctx, anna.access(), one.id).spec
    assert (spec.local_steps, spec.aggregation, spec.public, spec.env) == (20, "robust", True, {"A": "b c"})
    again = browser.post("/w/default/swarms/new", form)
    assert again.status_code == 409 and 'value="reef"' in again.text


def test_the_command_of_a_swarm_means_the_same_on_the_command_line(ctx):
    spec = SwarmSpec(name="reef", entry=["train.py", "--lr", "0.1"], source_id="src_1", target_batch_size=512, trust="open",
                     local_steps=20, public=True, datasets=["words"], env={"A": "b c"}, every_rounds=3)  # fmt: skip
    command = swarm_command(spec, workspace="lab", source={})
    assert command == (
        "shoal swarm create reef --workspace lab --target-batch-size 512 --local-steps 20 --trust open --checkpoint-rounds 3"
        " --public --dataset words --env 'A=b c' -- train.py --lr 0.1"
    )
    _, outer, _ = app.meta.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
    _, bound, _ = app.parse_args(expand(app, outer.args), exit_on_error=False, print_error=False)
    assert bound.args[0] == "reef" and bound.kwargs["target_batch_size"] == 512


@pytest.mark.parametrize(
    ("lacks", "told"),
    [
        ("source_id", "Provide the code first"),
        ("name", "Give the swarm a name"),
        ("target_batch_size", "Give the batch size"),
    ],
)
def test_a_form_that_lacks_something_says_what(browser, ctx, anna, lacks, told):
    form = {"name": "reef", "source_id": add_source(ctx, anna), "entry": "train.py", "target_batch_size": "512"} | {
        lacks: ""
    }
    answer = browser.post("/w/default/swarms/new", form)
    assert answer.status_code == 422 and told in answer.text
