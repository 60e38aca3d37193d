"""Secrets go in, reach jobs, and show nowhere else."""

import pytest
from sqlalchemy import select, update

from shoal.core.errors import Corrupt, NotFound
from shoal.server.models.secrets import Secret
from shoal.server.people.secrets import open_secrets
from shoal.server.people.vault import Vault
from shoal.testing.server import add_source

VALUE = "s3cr3t-value-of-the-test"


def put(client, name="WANDB", value=VALUE):
    return client.put("/workspaces/default/secrets", {"name": name, "value": value})


def test_a_secret_is_listed_by_name_and_opened_only_for_jobs(ctx, as_anna, anna):
    made = put(as_anna)
    assert made.status_code == 200
    listed = as_anna.get("/workspaces/default/secrets")
    assert listed.json() == [made.json()]
    assert VALUE not in made.text + listed.text
    assert open_secrets(ctx, anna.workspace_id, {"WANDB_API_KEY": "WANDB"}) == {"WANDB_API_KEY": VALUE}
    assert open_secrets(ctx, anna.workspace_id, {}) == {}


def test_putting_it_again_replaces_the_value_and_keeps_its_birthday(ctx, as_anna, anna):
    first, second = put(as_anna).json(), put(as_anna, value="ünïcode 🐟").json()
    assert second["created_at"] == first["created_at"]
    assert second["updated_at"] >= first["updated_at"]
    assert open_secrets(ctx, anna.workspace_id, {"A": "WANDB", "B": "WANDB"}) == {"A": "ünïcode 🐟", "B": "ünïcode 🐟"}


def test_a_deleted_secret_is_gone(ctx, as_anna, anna):
    put(as_anna)
    assert as_anna.delete("/workspaces/default/secrets/WANDB").status_code == 204
    assert as_anna.delete("/workspaces/default/secrets/WANDB").status_code == 404
    with pytest.raises(NotFound):
        open_secrets(ctx, anna.workspace_id, {"X": "WANDB"})


def test_a_missing_secret_is_named_with_the_command_that_makes_it(ctx, as_anna, anna):
    put(as_anna)
    with pytest.raises(NotFound) as caught:
        open_secrets(ctx, anna.workspace_id, {"A": "WANDB", "B": "WANDBB"})
    assert "'WANDBB'" in caught.value.message
    assert "Did you mean 'WANDB'?" in caught.value.message
    assert caught.value.hint == "shoal secret create WANDBB"


def test_other_workspaces_secrets_are_out_of_reach(ctx, as_anna, berta):
    put(as_anna)
    with pytest.raises(NotFound):
        open_secrets(ctx, berta.workspace_id, {"X": "WANDB"})


def test_a_jobs_view_names_its_secrets_and_holds_no_value(ctx, as_anna, anna):
    put(as_anna)
    spec = {
        "name": "j",
        "entry": ["train.py"],
        "source_id": add_source(ctx, anna),
        "secrets": {"WANDB_API_KEY": "WANDB"},
    }
    made = as_anna.post("/workspaces/default/jobs", spec)
    shown = as_anna.get("/workspaces/default/jobs/j")
    assert shown.json()["spec"]["secrets"] == {"WANDB_API_KEY": "WANDB"}
    assert VALUE not in made.text + shown.text + as_anna.get("/workspaces/default/jobs").text


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 64])
def test_odd_names_are_refused(as_anna, name):
    assert put(as_anna, name=name).status_code == 422


@pytest.mark.parametrize("value", ["", "a\0b", "x" * 65_537])
def test_values_that_cannot_be_an_environment_variable_are_refused_unrepeated(as_anna, value):
    answer = put(as_anna, value=value)
    assert answer.status_code == 422
    assert "xxxx" not in answer.text


def test_values_are_sealed_at_rest_with_a_key_nobody_else_may_read(ctx, as_anna):
    put(as_anna)
    assert ctx.layout.secret_key.stat().st_mode & 0o777 == 0o600
    ctx.db.close()
    stored = b"".join(p.read_bytes() for p in ctx.layout.server_dir.rglob("*") if p.is_file())
    assert b"WANDB" in stored
    assert VALUE.encode() not in stored


def test_a_sealed_value_moved_to_another_row_stays_shut(ctx, as_anna, as_berta, anna, berta):
    put(as_anna)
    put(as_berta)
    with ctx.db.read() as session:
        sealed = session.scalars(select(Secret.sealed).where(Secret.workspace_id == anna.workspace_id)).one()
    moved = update(Secret).where(Secret.workspace_id == berta.workspace_id).values(sealed=sealed)
    ctx.db.write(lambda s: s.execute(moved) and None)
    with pytest.raises(Corrupt):
        open_secrets(ctx, berta.workspace_id, {"X": "WANDB"})


def test_another_key_file_opens_nothing(ctx, as_anna, anna, tmp_path):
    put(as_anna)
    ctx.vault = Vault(tmp_path / "other.key")
    with pytest.raises(Corrupt):
        open_secrets(ctx, anna.workspace_id, {"X": "WANDB"})
