"""The key that secrets are encrypted with: a lost or changed one stops the start, and says what is lost and how to go on."""

import os

import pytest

from shoal.core.errors import Corrupt, Refused
from shoal.core.jobs import JobSpec
from shoal.core.people import SecretSet
from shoal.core.settings import Layout, ServerSettings
from shoal.server.jobs.service import submit
from shoal.server.models.server import ServerFact
from shoal.server.people.secret_key import open_vault
from shoal.server.people.secrets import list_secrets, open_secrets, set_secret
from shoal.server.people.vault import Vault
from shoal.server.run import open_context
from shoal.testing.server import add_source


@pytest.fixture
def layout(ctx, anna):
    """Data directory of a server that has run before, with a secret."""
    ctx.vault = open_vault(ctx.layout, ctx.db)
    set_secret(ctx, anna.access(), SecretSet(name="wandb", value="v"))
    return ctx.layout


def replaced(ctx):
    ctx.vault = open_vault(ctx.layout, ctx.db, new_key=True)


def test_a_key_that_fits_opens_again_and_again(ctx, layout, anna):
    ctx.vault = open_vault(layout, ctx.db)
    assert open_secrets(ctx, anna.workspace_id, {"X": "wandb"}) == {"X": "v"}


def test_an_empty_database_gets_a_key(ctx, tmp_path):
    ctx.layout.secret_key.unlink(missing_ok=True)
    open_vault(ctx.layout, ctx.db)
    assert ctx.layout.secret_key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("what", ["missing", "changed", "damaged"])
def test_a_lost_key_is_refused_with_what_is_lost_and_the_ways_out(ctx, layout, what):
    layout.secret_key.unlink()
    if what != "missing":
        layout.secret_key.write_bytes(os.urandom(32 if what == "changed" else 5))
    with pytest.raises(Refused) as caught:
        open_vault(layout, ctx.db)
    assert what in caught.value.message and "wandb" in caught.value.message
    assert "backup" in caught.value.hint and "shoal server start --new-secret-key" in caught.value.hint
    assert layout.secret_key.exists() == (what != "missing"), "nothing was made in its place"


@pytest.mark.parametrize("what", ["missing", "changed"])
def test_a_database_of_0_1_has_no_check_value_and_is_checked_by_what_it_holds(ctx, anna, what):
    set_secret(ctx, anna.access(), SecretSet(name="wandb", value="v"))
    open_vault(ctx.layout, ctx.db)
    ctx.db.write(lambda session: session.query(ServerFact).delete())
    ctx.layout.secret_key.unlink()
    if what == "changed":
        Vault(ctx.layout.secret_key)
    with pytest.raises(Refused, match=what):
        open_vault(ctx.layout, ctx.db)


def test_a_new_key_is_an_explicit_act_after_which_the_lost_secrets_are_named_until_set_again(ctx, layout, anna):
    old = layout.secret_key.read_bytes()
    layout.secret_key.write_bytes(os.urandom(32))
    replaced(ctx)
    assert [p for p in layout.server_dir.glob("secret.key.replaced-*") if p.read_bytes() != old], (
        "nothing is thrown away"
    )
    [view] = list_secrets(ctx, anna.access())
    assert (view.name, view.readable) == ("wandb", False)
    with pytest.raises(Corrupt, match="'wandb' cannot be decrypted") as caught:
        open_secrets(ctx, anna.workspace_id, {"X": "wandb"})
    assert caught.value.hint == "shoal secret create wandb"
    set_secret(ctx, anna.access(), SecretSet(name="wandb", value="w"))
    assert list_secrets(ctx, anna.access())[0].readable
    ctx.vault = open_vault(layout, ctx.db)


def test_a_job_is_not_submitted_with_a_secret_that_cannot_be_read(ctx, layout, anna):
    layout.secret_key.unlink()
    replaced(ctx)
    spec = JobSpec(name="j", entry=["train.py"], source_id=add_source(ctx, anna), secrets={"X": "wandb"})
    with pytest.raises(Corrupt, match="'wandb'"):
        submit(ctx, anna.access(), spec)


def test_a_key_that_fits_is_not_replaced(ctx, layout):
    with pytest.raises(Refused, match="matches"):
        open_vault(layout, ctx.db, new_key=True)


def test_the_server_itself_does_not_start_with_a_lost_key(tmp_path):
    layout = Layout(tmp_path / "home")
    layout.server_dir.mkdir(parents=True)
    open_context(layout, ServerSettings(slots=1)).db.close()
    layout.secret_key.unlink()
    with pytest.raises(Refused, match="missing"):
        open_context(layout, ServerSettings(slots=1))
    assert not layout.secret_key.exists()
