"""`shoal source`: registered git repositories."""

from __future__ import annotations

from cyclopts import App

from shoal.cli.shared.output import Column, out
from shoal.cli.shared.session import connect

app = App(name="source")


@app.command
def add(name: str, repository: str, /, *, revision: str | None = None) -> None:
    """Register a git repository under a name, to run code from it with --source-name.

    For example:

      shoal source add experiments https://github.com/me/experiments
      shoal source add stable https://github.com/me/experiments --revision v1.2
      shoal training run hello --source-name experiments -- train.py

    Parameters
    ----------
    name
        Name for the repository.
    repository
        URL of the repository, as for `git clone`.
    revision
        Branch, tag or commit to use by default.
    """
    with connect() as client:
        source = client.git_sources.add(name, repository, revision)
    out.show(source, lambda: out.info(f"Source '{source.name}' is {source.url}."))


@app.command(name="list")
def list_sources() -> None:
    """List the registered git repositories of the workspace.

    For example:

      shoal source list
    """
    with connect() as client:
        sources = client.git_sources.list()
    columns = [
        Column("NAME", lambda s: s.name),
        Column("URL", lambda s: s.url, is_text=True),
        Column("REVISION", lambda s: s.revision, rank=1),
        Column("ADDED", lambda s: s.created_at, rank=2),
    ]
    out.show(
        sources, lambda: out.table(sources, columns, empty=f"No sources yet. Add one: {out.prog} source add NAME URL")
    )


@app.command
def delete(name: str, /) -> None:
    """Remove a registered git repository. Jobs that used it keep their code.

    For example:

      shoal source delete experiments
    """
    with connect() as client:
        client.git_sources.delete(name)
    out.show({"deleted": name}, lambda: out.info(f"Source '{name}' deleted."))
