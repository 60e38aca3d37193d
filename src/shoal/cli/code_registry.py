"""`shoal code-registry`: git hosts whose private repositories jobs may come from."""

from __future__ import annotations

from cyclopts import App

from shoal.cli.shared.output import Column, out
from shoal.cli.shared.prompt import read_secret
from shoal.cli.shared.session import connect

app = App(name="code-registry")


@app.command(name="connect")
def connect_registry(*, host: str = "github.com", username: str | None = None, token_stdin: bool = False) -> None:
    """Connect a git host, so that its private repositories can be cloned.

    The access token is prompted for and kept as a secret. Public
    repositories need no connection.

    For example:

      shoal code-registry connect
      shoal code-registry connect --host gitlab.com --username oauth2
      shoal code-registry connect --token-stdin < token.txt

    Parameters
    ----------
    host
        The git host (default github.com).
    username
        User name to send with the token; most hosts accept any.
    token_stdin
        Read the token from stdin instead of asking.
    """
    token = read_secret(f"Access token for {host}", from_stdin=token_stdin, option="--token-stdin").strip()
    with connect() as client:
        registry = client.registries.connect(host, token, username)
    out.show(registry, lambda: out.info(f"Connected to {registry.host}. Its private repositories can now be used."))


@app.command(name="list")
def list_registries() -> None:
    """List the connected git hosts.

    For example:

      shoal code-registry list
    """
    with connect() as client:
        registries = client.registries.list()
    columns = [Column("HOST", lambda r: r.host), Column("USERNAME", lambda r: r.username)]
    empty = f"None yet. Connect one: {out.prog} code-registry connect"
    out.show(registries, lambda: out.table(registries, columns, empty=empty))


@app.command
def disconnect(host: str, /) -> None:
    """Forget a git host and its token.

    For example:

      shoal code-registry disconnect github.com
    """
    with connect() as client:
        client.registries.disconnect(host)
    out.show({"disconnected": host}, lambda: out.info(f"{host} is no longer connected."))
