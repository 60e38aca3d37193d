"""`shoal key`: API keys."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_duration
from shoal.cli.shared.session import connect

app = App(name="key")


@app.command
def create(
    name: str,
    /,
    *,
    scope: Annotated[list[Literal["read", "write", "admin"]] | None, Parameter(consume_multiple=False)] = None,
    expires: str | None = None,
) -> None:
    """Create an API key. It is shown only once.

    For example:

      shoal key create laptop
      shoal key create ci --scope read --scope write --expires 30d
      export SHOAL_API_KEY=$(shoal key create ci)

    Parameters
    ----------
    name
        Name of the key.
    scope
        Permission of the key: read, write or admin (repeatable; all by default).
    expires
        Lifetime of the key: 12h, 30d … (default: does not expire).
    """
    from shoal.core.people import Scope

    expires_in_s = int(parse_duration(expires, "--expires")) if expires else None
    with connect() as client:
        key = client.keys.create(name, scopes=[Scope(s) for s in scope or ()], expires_in_s=expires_in_s)

    def show() -> None:
        out.line(key.key)
        out.info(f"This is the only time key '{name}' is shown. Use it as SHOAL_API_KEY.")

    out.show(key, show)


@app.command(name="list")
def list_keys() -> None:
    """List your API keys.

    For example:

      shoal key list
    """
    with connect() as client:
        keys = client.keys.list()
    columns = [
        Column("NAME", lambda k: k.name),
        Column("KEY", lambda k: f"…{k.hint}", rank=2),
        Column("SCOPES", lambda k: ",".join(k.scopes), rank=3),
        Column("CREATED", lambda k: k.created_at, rank=4),
        Column("LAST USED", lambda k: k.last_used_at, rank=1),
        Column("EXPIRES", lambda k: k.expires_at, rank=1),
        Column("REVOKED", lambda k: k.revoked_at, rank=2),
    ]
    out.show(keys, lambda: out.table(keys, columns, empty=f"No API keys yet. Create one: {out.prog} key create NAME"))


@app.command
def revoke(name: str, /) -> None:
    """Revoke an API key, immediately and permanently.

    For example:

      shoal key revoke ci
    """
    with connect() as client:
        client.keys.revoke(name)
    out.show({"revoked": name}, lambda: out.info(f"Key '{name}' is revoked."))
