"""`shoal secret`: secret values that jobs get as environment variables."""

from __future__ import annotations

from cyclopts import App

from shoal.cli.shared.output import Column, out
from shoal.cli.shared.prompt import read_secret
from shoal.cli.shared.session import connect

app = App(name="secret")


@app.command
def create(name: str, /, *, value_stdin: bool = False) -> None:
    """Store a secret, or replace its value. The value is prompted for.

    The value is encrypted at rest, given only to jobs that request it with
    --secret, and never shown.

    For example:

      shoal secret create wandb
      shoal secret create wandb --value-stdin < key.txt
      shoal training run hello --secret WANDB_API_KEY=wandb -- train.py

    Parameters
    ----------
    name
        Name of the secret.
    value_stdin
        Read the value from stdin instead of asking.
    """
    value = read_secret(f"Value of '{name}'", from_stdin=value_stdin, option="--value-stdin")
    with connect() as client:
        secret = client.secrets.set(name, value)
    out.show(secret, lambda: out.info(f"Secret '{name}' stored. Use it: training run … --secret ENV_NAME={name}"))


@app.command(name="list")
def list_secrets() -> None:
    """List the secrets of the workspace, by name only.

    For example:

      shoal secret list
    """
    with connect() as client:
        secrets = client.secrets.list()
    columns = [
        Column("NAME", lambda s: s.name),
        Column("CREATED", lambda s: s.created_at, rank=2),
        Column("UPDATED", lambda s: s.updated_at, rank=1),
    ]
    lost = [s.name for s in secrets if not s.readable]

    def show() -> None:
        out.table(secrets, columns, empty=f"No secrets yet. Create one: {out.prog} secret create NAME")
        if lost:
            out.warn(
                f"The server's secret.key was replaced, so it can no longer read: {', '.join(lost)}. "
                f"Set them again: {out.prog} secret create {lost[0]}"
            )

    out.show(secrets, show)


@app.command
def delete(name: str, /) -> None:
    """Delete a secret. Jobs that need it can no longer start.

    For example:

      shoal secret delete wandb
    """
    with connect() as client:
        client.secrets.delete(name)
    out.show({"deleted": name}, lambda: out.info(f"Secret '{name}' deleted."))
