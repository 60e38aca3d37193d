"""Workspaces and members: names per owner, never without an owner, never deleted under a running job."""

import pytest
from sqlalchemy import select, update

from shoal.core.people import Role
from shoal.core.schema import utcnow
from shoal.server.models.jobs import Attempt, Job
from shoal.server.models.secrets import Secret
from shoal.server.models.sources import Source
from shoal.server.models.workspaces import Member, Workspace
from shoal.testing.server import AppClient, add_job, add_member, add_node, add_person


def code(response):
    return response.json()["error"]["code"]


def test_workspaces_are_made_listed_and_deleted(as_anna):
    made = as_anna.post("/workspaces", {"name": "research"})
    assert made.status_code == 201
    assert [w["name"] for w in as_anna.get("/workspaces").json()] == ["default", "research"]
    assert as_anna.delete("/workspaces/research").status_code == 204
    assert as_anna.delete(f"/workspaces/{made.json()['id']}").status_code == 404
    assert [w["name"] for w in as_anna.get("/workspaces").json()] == ["default"]


def test_the_last_workspace_may_go_too(as_anna):
    assert as_anna.delete("/workspaces/default").status_code == 204
    assert as_anna.get("/workspaces").json() == []


def test_names_are_taken_per_owner(as_anna, as_berta):
    assert code(as_anna.post("/workspaces", {"name": "default"})) == "name_taken"
    assert as_anna.post("/workspaces", {"name": "research"}).status_code == 201
    assert as_berta.post("/workspaces", {"name": "research"}).status_code == 201


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 64, "ws_01k9z0000000000000000000ab", "é"])
def test_odd_names_are_refused(as_anna, name):
    assert as_anna.post("/workspaces", {"name": name}).status_code == 422


def test_a_list_counts_jobs_and_datasets_of_that_workspace_only(ctx, as_anna, as_berta, anna, berta):
    add_job(ctx, anna, "one")
    add_job(ctx, anna, "two")
    add_job(ctx, berta, "three")
    for client, name in ((as_anna, "text"), (as_anna, "text"), (as_berta, "images"), (as_berta, "sound")):
        assert client.post("/workspaces/default/datasets", {"name": name}).status_code == 201
    as_anna.post("/workspaces", {"name": "empty"})
    assert [(w["name"], w["jobs"], w["datasets"]) for w in as_anna.get("/workspaces").json()] == [
        ("default", 2, 1),
        ("empty", 0, 0),
    ]


def test_a_workspace_with_an_unfinished_job_stays(ctx, as_anna, anna):
    add_job(ctx, anna, "long-one")
    answer = as_anna.delete("/workspaces/default")
    assert (answer.status_code, code(answer)) == (409, "not_allowed_now")
    assert "long-one" in answer.json()["error"]["message"]
    assert answer.json()["error"]["hint"] == "shoal training stop long-one"
    assert len(as_anna.get("/workspaces").json()) == 1


def test_a_deleted_workspace_takes_everything_of_its_own_and_nothing_else(ctx, as_anna, anna, berta):
    add_node(ctx, add_job(ctx, anna))
    add_node(ctx, add_job(ctx, berta))
    for who in (anna, berta):
        AppClient(as_anna.app, who.key).put("/workspaces/default/secrets", {"name": "s", "value": "v"})
    ctx.db.write(lambda s: s.execute(update(Job).values(state="succeeded", ended_at=utcnow())))
    assert as_anna.delete("/workspaces/default").status_code == 204
    with ctx.db.read() as session:
        for table in (Job, Source, Secret, Member):
            assert {row.workspace_id for row in session.scalars(select(table))} == {berta.workspace_id}
        assert len(session.scalars(select(Attempt)).all()) == 1
        assert [w.id for w in session.scalars(select(Workspace))] == [berta.workspace_id]


def test_a_workspace_is_renamed_and_keeps_all_that_is_in_it(ctx, as_anna, as_berta, anna, berta):
    job_id = add_job(ctx, anna)
    renamed = as_anna.request("PATCH", "/workspaces/default", json={"name": "vision"})
    assert (renamed.status_code, renamed.json()["name"], renamed.json()["id"]) == (200, "vision", anna.workspace_id)
    assert renamed.json()["jobs"] == 1
    assert as_anna.get(f"/workspaces/vision/jobs/{job_id}").status_code == 200
    assert as_anna.get("/workspaces/default/jobs").status_code == 404
    assert as_anna.request("PATCH", "/workspaces/vision", json={"name": "vision"}).status_code == 200
    assert [w["name"] for w in as_berta.get("/workspaces").json()] == ["default"]


def test_a_name_that_is_taken_or_odd_renames_nothing(ctx, as_anna, as_berta, anna, berta):
    as_anna.post("/workspaces", {"name": "research"})
    assert code(as_anna.request("PATCH", "/workspaces/research", json={"name": "default"})) == "name_taken"
    for name in ("", "a b", "ws_01k9z0000000000000000000ab"):
        assert as_anna.request("PATCH", "/workspaces/research", json={"name": name}).status_code == 422
    add_member(ctx, anna.workspace_id, berta, Role.OWNER)
    # Names are unique per first owner, who is Anna whoever asks.
    path = f"/workspaces/{anna.workspace_id}"
    assert code(as_berta.request("PATCH", path, json={"name": "research"})) == "name_taken"
    assert as_berta.request("PATCH", path, json={"name": "shared"}).json()["name"] == "shared"
    assert [w["name"] for w in as_anna.get("/workspaces").json()] == ["research", "shared"]


def test_members_are_added_by_e_mail_changed_and_removed(as_anna, as_berta, anna, berta):
    path = f"/workspaces/{anna.workspace_id}"
    assert as_berta.get(f"{path}/members").status_code == 404
    added = as_anna.put(f"{path}/members", {"email": " Berta@Example.org", "role": "viewer"})
    assert added.json() == {"user_id": berta.user_id, "email": berta.email, "name": "", "role": "viewer"}
    assert [m["email"] for m in as_berta.get(f"{path}/members").json()] == [anna.email, berta.email]
    assert as_anna.put(f"{path}/members", {"email": berta.email, "role": "member"}).json()["role"] == "member"
    assert as_anna.delete(f"{path}/members/{berta.user_id}").status_code == 204
    assert as_berta.get(f"{path}/members").status_code == 404
    assert as_anna.delete(f"{path}/members/{berta.email}").status_code == 404


def test_someone_without_an_account_cannot_be_added(as_anna):
    answer = as_anna.put("/workspaces/default/members", {"email": "ghost@example.org", "role": "member"})
    assert (answer.status_code, code(answer)) == (404, "not_found")
    assert "ghost@example.org" in answer.json()["error"]["message"]


def test_the_last_owner_can_neither_leave_nor_be_demoted(as_anna, anna):
    assert code(as_anna.delete(f"/workspaces/default/members/{anna.email}")) == "not_allowed_now"
    for role in ("member", "viewer"):
        answer = as_anna.put("/workspaces/default/members", {"email": anna.email, "role": role})
        assert code(answer) == "not_allowed_now"
    assert as_anna.get("/workspaces").json()[0]["role"] == "owner"


def test_ownership_can_be_shared_and_handed_over(as_anna, as_berta, anna, berta):
    as_anna.post("/workspaces", {"name": "project"})
    as_anna.put("/workspaces/project/members", {"email": berta.email, "role": "owner"})
    assert as_anna.delete("/workspaces/project/members/" + anna.email).status_code == 204
    assert as_anna.get("/workspaces/project/members").status_code == 404
    assert [m["role"] for m in as_berta.get("/workspaces/project/members").json()] == ["owner"]
    # The name is Berta's now, and free again for Anna.
    assert code(as_berta.post("/workspaces", {"name": "project"})) == "name_taken"
    assert as_anna.post("/workspaces", {"name": "project"}).status_code == 201


def test_a_workspace_is_not_handed_to_someone_who_has_one_of_that_name(as_anna, anna, berta):
    as_anna.put("/workspaces/default/members", {"email": berta.email, "role": "owner"})
    answer = as_anna.delete("/workspaces/default/members/" + anna.email)
    assert code(answer) == "not_allowed_now"
    assert "named 'default'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("role", ["viewer", "member"])
def test_everyone_may_leave_but_only_owners_remove_others(ctx, app, anna, berta, role):
    carla = add_person(ctx, "carla@example.org")
    add_member(ctx, anna.workspace_id, berta, Role(role))
    add_member(ctx, anna.workspace_id, carla, Role.VIEWER)
    me, path = AppClient(app, berta.key), f"/workspaces/{anna.workspace_id}/members"
    assert code(me.delete(f"{path}/{carla.email}")) == "forbidden"
    assert code(me.delete(f"{path}/{anna.email}")) == "forbidden"
    assert me.put(path, {"email": berta.email, "role": "owner"}).status_code == 403
    assert me.delete(f"{path}/{berta.email}").status_code == 204
    assert me.get(path).status_code == 404


def test_of_two_workspaces_with_one_name_your_own_is_meant(ctx, as_berta, anna, berta):
    add_member(ctx, anna.workspace_id, berta, Role.OWNER)
    as_berta.put("/workspaces/default/secrets", {"name": "mine", "value": "v"})
    assert as_berta.get(f"/workspaces/{anna.workspace_id}/secrets").json() == []
    assert len(as_berta.get(f"/workspaces/{berta.workspace_id}/secrets").json()) == 1
