"""Invitations to a workspace: who gets in by them, how often, and until when."""

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from shoal.core.errors import Forbidden, NotAllowedNow, NotFound, TooManyTries
from shoal.core.people import MemberSet, Role, SignUp, WorkspaceInvite
from shoal.core.schema import utcnow
from shoal.core.settings import ServerSettings
from shoal.server.models.users import User
from shoal.server.models.workspaces import WorkspaceInvitation
from shoal.server.people import invitations as workspace_invitations
from shoal.server.people import sign_in, workspaces
from shoal.server.policy import find_workspace
from shoal.testing.server import add_person, make_context

PASSWORD = "a long password"
HOME = "127.0.0.1"


@pytest.fixture
def ctx(tmp_path):
    """A shared server on which nobody can sign up without being let in."""
    made = make_context(tmp_path, private=False, settings=ServerSettings(host="0.0.0.0", sign_up=False))
    yield made
    made.db.close()


@pytest.fixture
def anna(ctx):
    person = add_person(ctx, "anna@example.org")
    ctx.db.write(lambda s: s.execute(update(User).values(password_hash="x")) and None)
    return person


def invite(ctx, person, **asked):
    return workspace_invitations.create(ctx, person.access(), WorkspaceInvite(**asked))


def sign_up(ctx, code, email="eva@example.org"):
    body = SignUp(email=email, password=PASSWORD, invitation=code)
    return sign_in.sign_up(ctx, body, caller=None, address=HOME)


def members(ctx, person):
    return {m.email: m.role for m in workspaces.list_members(ctx, person.access())}


def test_a_new_person_signs_up_by_a_link_and_is_a_member(ctx, anna):
    with pytest.raises(Forbidden, match="invitation"):
        sign_up(ctx, "")
    made = invite(ctx, anna, role=Role.VIEWER)
    session = sign_up(ctx, made.code)
    assert (session.joined.id, session.joined.role) == (anna.workspace_id, Role.VIEWER)
    assert members(ctx, anna) == {"anna@example.org": Role.OWNER, "eva@example.org": Role.VIEWER}
    assert not session.user.is_admin
    assert workspace_invitations.list_open(ctx, anna.access()) == []


def test_a_person_with_an_account_joins_by_a_link(ctx, anna):
    berta = add_person(ctx, "berta@example.org")
    made = invite(ctx, anna)
    joined = workspace_invitations.join(ctx, berta.access().principal, made.code, address=HOME)
    assert joined.id == anna.workspace_id
    assert members(ctx, anna)["berta@example.org"] == Role.MEMBER


def test_a_link_opens_once(ctx, anna):
    made = invite(ctx, anna)
    sign_up(ctx, made.code)
    with pytest.raises(NotFound, match="already used"):
        sign_up(ctx, made.code, "second@example.org")
    with ctx.db.read() as session:
        assert session.scalar(select(User.id).where(User.email == "second@example.org")) is None


def test_a_member_does_not_use_a_link_up(ctx, anna):
    made = invite(ctx, anna, role=Role.VIEWER)
    with pytest.raises(NotAllowedNow, match="already a member"):
        workspace_invitations.join(ctx, anna.access().principal, made.code, address=HOME)
    assert members(ctx, anna) == {"anna@example.org": Role.OWNER}
    sign_up(ctx, made.code)


def test_a_link_for_an_address_opens_for_that_address_only(ctx, anna):
    made = invite(ctx, anna, email=" Eva@Example.org ")
    with pytest.raises(Forbidden, match=r"for eva@example\.org"):
        sign_up(ctx, made.code, "mallory@example.org")
    assert sign_up(ctx, made.code).joined is not None


def test_what_expired_was_revoked_or_was_never_made_opens_nothing(ctx, anna):
    old, revoked = invite(ctx, anna), invite(ctx, anna, email="eva@example.org")
    past = update(WorkspaceInvitation).where(WorkspaceInvitation.id == old.id)
    ctx.db.write(lambda s: s.execute(past.values(expires_at=utcnow() - timedelta(seconds=1))) and None)
    assert workspace_invitations.revoke(ctx, anna.access(), "eva@example.org") == 1
    for code, why in ((old.code, "expired"), (revoked.code, "revoked"), ("shoali_guessed", "no such invitation")):
        with pytest.raises(NotFound, match=why):
            sign_up(ctx, code)
    with pytest.raises(NotFound):
        workspace_invitations.revoke(ctx, anna.access(), revoked.id)
    assert workspace_invitations.list_all_open(ctx) == []


def test_the_link_of_an_owner_who_is_none_any_more_is_void(ctx, anna):
    berta = add_person(ctx, "berta@example.org")
    workspaces.set_member(ctx, anna.access(), MemberSet(email=berta.email, role=Role.OWNER))
    with ctx.db.read() as session:
        access = find_workspace(session, berta.access().principal, anna.workspace_id)
    made = workspace_invitations.create(ctx, access, WorkspaceInvite())
    workspaces.set_member(ctx, anna.access(), MemberSet(email=berta.email, role=Role.MEMBER))
    with pytest.raises(NotFound, match="no longer an owner"):
        sign_up(ctx, made.code)


def test_only_the_hash_of_a_code_is_kept(ctx, anna):
    made = invite(ctx, anna)
    ctx.db.close()
    assert made.code.encode() not in b"".join(
        p.read_bytes() for p in ctx.layout.server_dir.rglob("*") if p.is_file() and p.suffix.startswith(".db")
    )


def test_guessing_is_held_back_as_at_the_sign_in(ctx, anna):
    for _ in range(5):
        with pytest.raises(NotFound):
            workspace_invitations.peek(ctx, "shoali_guess", address=HOME)
    with pytest.raises(TooManyTries):
        workspace_invitations.peek(ctx, "shoali_guess", address=HOME)
    for _ in range(5):
        with pytest.raises(NotFound):
            workspace_invitations.join(ctx, anna.access().principal, "shoali_guess", address="10.0.0.9")
    with pytest.raises(TooManyTries):
        workspace_invitations.join(ctx, anna.access().principal, "shoali_guess", address="10.0.0.9")


def test_inviting_an_account_by_its_address_still_adds_it_at_once(ctx, anna):
    berta = add_person(ctx, "berta@example.org")
    workspaces.set_member(ctx, anna.access(), MemberSet(email=berta.email, role=Role.MEMBER))
    assert "berta@example.org" in members(ctx, anna)
    with pytest.raises(NotFound, match="invitation lets them make one") as refused:
        workspaces.set_member(ctx, anna.access(), MemberSet(email="new@example.org", role=Role.MEMBER))
    assert refused.value.hint == "shoal workspace invite new@example.org"
    assert refused.value.details == {"no_account": "new@example.org"}
