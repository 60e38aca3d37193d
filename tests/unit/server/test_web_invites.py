"""The page behind an invitation, and invitations on the pages of owners and admins."""

import re

import pytest
from web_browser import BASE, Browser

from shoal.core.people import Role, WorkspaceInvite
from shoal.server.people import invitations as workspace_invitations
from shoal.server.people import workspaces
from shoal.testing.server import add_member, add_person

PASSWORD = "a long password"


@pytest.fixture
def owner(app, ctx, anna):
    return Browser(app).enter(ctx, anna)


def made_link(answer):
    return re.search(rf"{BASE}(/invite/shoali_[\w-]+)", answer.text).group(1)


def test_an_owner_makes_a_link_and_a_stranger_signs_up_by_it(app, ctx, anna, owner):
    answer = owner.post("/w/default/invitations", {"email": "", "role": "viewer", "days": "1"})
    assert answer.status_code == 201
    path = made_link(answer)
    assert path.rpartition("/")[2] not in owner.get("/w/default/members").text, "a code is shown once"
    assert "Anyone with the link" in owner.get("/w/default/members").text

    stranger = Browser(app)
    page = stranger.get(path)
    assert page.status_code == 200 and "anna@example.org" in page.text and "as viewer" in page.text
    short = stranger.post(path, {"email": "eva@example.org", "password": "short"})
    assert short.status_code == 422 and 'value="eva@example.org"' in short.text
    answer = stranger.post(path, {"email": "eva@example.org", "password": PASSWORD, "name": "Eva"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/w/{anna.workspace_id}/jobs")
    assert stranger.get(answer.headers["location"]).status_code == 200
    assert {m.email: m.role for m in workspaces.list_members(ctx, anna.access())}["eva@example.org"] == Role.VIEWER
    gone = Browser(app).get(path)
    assert gone.status_code == 404 and "already used" in gone.text


def test_someone_signed_in_joins_with_one_click(app, ctx, anna, berta):
    made = workspace_invitations.create(ctx, anna.access(), WorkspaceInvite())
    browser = Browser(app).enter(ctx, berta)
    page = browser.get(made.path)
    assert "Join as berta@example.org" in page.text and 'type="password"' not in page.text
    answer = browser.post(made.path)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/w/{anna.workspace_id}/jobs")
    again = workspace_invitations.create(ctx, anna.access(), WorkspaceInvite())
    assert "already a member" in browser.post(again.path).text


def test_someone_with_an_account_is_sent_back_after_signing_in(app, ctx, anna):
    made = workspace_invitations.create(ctx, anna.access(), WorkspaceInvite(email="eva@example.org"))
    page = Browser(app).get(made.path).text
    assert f"/sign-in?next={made.path}" in page
    assert re.search(r'value="eva@example.org" required readonly', page)


def test_an_invitation_cannot_be_used_from_another_sites_page(app, ctx, anna, berta):
    made = workspace_invitations.create(ctx, anna.access(), WorkspaceInvite())
    browser = Browser(app).enter(ctx, berta)
    assert browser.post(made.path, origin="https://evil.example").status_code == 403
    assert workspace_invitations.list_open(ctx, anna.access())


def test_owners_and_admins_revoke_and_others_see_nothing(app, ctx, anna, berta, owner):
    first, second = (
        workspace_invitations.create(ctx, anna.access(), WorkspaceInvite(email=f"{n}@example.org")) for n in "xy"
    )
    add_member(ctx, anna.workspace_id, berta, Role.MEMBER)
    member = Browser(app).enter(ctx, berta)
    assert "x@example.org" not in member.get(f"/w/{anna.workspace_id}/members").text
    assert member.post(f"/w/{anna.workspace_id}/invitations/{first.id}/revoke").status_code == 403
    assert owner.post(f"/w/default/invitations/{first.id}/revoke").status_code == 303
    assert owner.post(f"/admin/invitations/{second.id}/revoke").status_code == 403
    admin = Browser(app).enter(ctx, add_person(ctx, "admin@example.org", is_admin=True))
    assert "y@example.org" in admin.get("/admin").text
    assert admin.post(f"/admin/invitations/{second.id}/revoke").status_code == 303
    assert workspace_invitations.list_all_open(ctx) == []


def test_odd_days_are_no_server_error(owner):
    for days in ("²", "9" * 5000, "-1", "soon"):
        answer = owner.post("/w/default/invitations", {"email": "", "role": "viewer", "days": days})
        assert answer.status_code in (201, 422), days
