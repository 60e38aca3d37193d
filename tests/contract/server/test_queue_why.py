"""The queue explained by a server: why a job waits, what would become of another, what can be changed, who sees what."""

import shlex

import pytest
from queueworld import TwoMachines, World

from shoal.core.queue import QuotaSet
from shoal.core.states import JobState
from shoal.server.queue import quotas


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, TwoMachines())
    yield world
    world.ctx.db.close()


def why(world, name, client=None):
    return (client or world.as_anna).get(f"/workspaces/default/jobs/{name}/why").json()


def test_why_names_the_reason_the_evidence_and_a_change_that_works(world):
    world.submit("first", min_nodes=2, max_nodes=2, accels=3, expected_s=600)
    world.tick()
    world.submit("me", accels=4)
    world.tick()
    told = why(world, "me")
    assert (told["reason"], told["place"], told["status"]) == ("slots", 1, "queued")
    assert told["text"] == "next in line; needs 4 slots, 2 free now"
    assert told["evidence"][0] == "it needs 4 slots; 2 of 8 are free, at most 1 on one machine"
    assert told["evidence"][1].startswith("'first' holds 6 and ends in about 10 min")
    assert told["starts_at"] is not None
    assert told["suggestion"]["what"] == "with 1 slot per node it would start now"
    assert told["suggestion"]["command"] == "shoal training change me --accels 1"
    changed = world.as_anna.request("PATCH", "/workspaces/default/jobs/me", json=told["suggestion"]["change"])
    assert changed.status_code == 200, changed.text
    world.tick()
    assert world.view("me").status is JobState.RUNNING
    assert why(world, "me")["reason"] == "not_waiting"


def test_why_of_one_that_waits_its_turn_and_of_one_over_quota(world):
    world.submit("first", accels=3, expected_s=600)
    world.submit("other", accels=3, expected_s=600)
    world.tick()
    world.submit("large", min_nodes=2, max_nodes=2, accels=4)
    world.submit("small", accels=1)
    world.tick()
    told = why(world, "small")
    assert told["reason"] == "turn" and "might delay 'large', which is next" in told["text"]
    assert any(line.startswith("before it: 'large'") for line in told["evidence"])
    quotas.set_quota(world.ctx, world.anna.workspace_id, QuotaSet(slots=6))
    world.tick()
    told = why(world, "small")
    assert told["reason"] == "quota" and "may hold 6 slots at once, and holds 6 now" in told["text"]
    assert "its workspace holds 6 of the 6 slots it may hold at once" in told["evidence"]
    command = shlex.split(told["suggestion"]["command"])
    assert command[:4] == ["shoal", "queue", "quota", world.anna.workspace_id]


def test_what_belongs_to_others_has_no_name_in_answers(world):
    world.submit("secret-plan", person=world.berta, min_nodes=2, max_nodes=2, accels=4)
    world.tick()
    world.submit("also-secret", person=world.berta, accels=4)
    world.submit("mine", accels=4)
    world.tick()
    shown = world.as_anna.get("/queue?starts=true")
    assert "secret" not in shown.text
    rows = {row["job"]: row for row in shown.json()["rows"]}
    assert set(rows) == {"mine", None} and rows[None]["workspace"] is None and rows[None]["accels"] == 4
    assert "secret" not in str(why(world, "mine"))
    assert rows["mine"]["starts_at"] is not None
    shares = {s["workspace"]: s for s in shown.json()["shares"]}
    assert shares["default"]["in_use"] == 0


def test_the_queue_is_shown_in_the_order_it_is_looked_at(world):
    world.submit("running", min_nodes=2, max_nodes=2, accels=4)
    world.tick()
    for name, priority in (("late", 0), ("low", -5), ("top", 7)):
        world.submit(name, accels=2, priority=priority)
    world.tick()
    rows = world.as_anna.get("/queue").json()["rows"]
    assert [(r["place"], r["job"]) for r in rows] == [(1, "top"), (2, "late"), (3, "low")]
    assert len(world.as_anna.get("/queue?limit=1").json()["rows"]) == 1


def test_what_if_submits_nothing_and_says_who_would_wait(world):
    world.submit("running", accels=4, expected_s=600)
    world.tick()
    world.submit("next", min_nodes=2, max_nodes=2, accels=4, expected_s=100)
    world.tick()
    path = "/workspaces/default/queue/simulate"
    brief = world.as_anna.post(path, {"accels": 2, "time_limit_s": 60}).json()
    assert brief["starts_now"] and brief["delays"] == 0
    long = world.as_anna.post(path, {"accels": 2}).json()
    assert not long["starts_now"] and long["place"] == 2 and long["starts_at"]
    urgent = world.as_anna.post(path, {"accels": 4, "priority": 9, "expected_s": 5000}).json()
    assert urgent["starts_now"] and urgent["delays"] == 1
    all_of_it = world.as_anna.post(path, {"min_nodes": 2, "max_nodes": 2, "accels": 4, "priority": 9}).json()
    assert all_of_it["preempts"] == ["running"]
    assert world.as_anna.post(path, {"accels": 99}).status_code == 422
    assert len(world.as_anna.get("/workspaces/default/jobs").json()) == 2


def test_only_a_waiting_job_is_changed_and_only_to_what_can_run(world):
    job = world.submit("first", min_nodes=2, max_nodes=2, accels=4)
    world.tick()
    world.submit("me", accels=2, time_limit_s=60)
    path = "/workspaces/default/jobs/"
    assert world.as_anna.request("PATCH", f"{path}{job}", json={"priority": 3}).status_code == 409
    for bad in ({}, {"priority": 101}, {"accels": 99}, {"exclude": ["nowhere"]}, {"min_nodes": 3, "max_nodes": 2}):
        assert world.as_anna.request("PATCH", f"{path}me", json=bad).status_code in (404, 422), bad
    wanted = {"priority": 3, "time_limit_s": 0, "exclude": ["x"], "min_nodes": 2}
    answer = world.as_anna.request("PATCH", f"{path}me", json=wanted)
    spec = answer.json()["spec"]
    assert (spec["priority"], spec["time_limit_s"], spec["exclude"], spec["max_nodes"]) == (3, None, ["x"], 2)
    assert "changed by anna@example.org" in answer.json()["events"][-1]["message"]
    world.tick()
    assert world.view("me").waiting.startswith("next in line; needs 2 × 2 slots outside x")
