"""`shoal workspace`: workspaces and who is in them."""

from __future__ import annotations

from typing import Literal

from cyclopts import App

from shoal.cli._output import Column, out
from shoal.cli._prompt import confirm
from shoal.cli._session import connect, session
from shoal.core.settings import Layout

app = App(name="workspace")


@app.command
def create(name: str, /) -> None:
    """Make a workspace, with you as its owner.

    For example:

      shoal workspace create vision
      shoal workspace use vision
    """
    with connect() as client:
        workspace = client.workspaces.create(name)
    out.show(workspace, lambda: out.say(f"Workspace '{name}' made. Work in it: {out.prog} workspace use {name}"))


@app.command(name="list")
def list_workspaces() -> None:
    """List the workspaces you are a member of; the one in use is marked.

    For example:

      shoal workspace list
    """
    with connect() as client:
        workspaces = client.workspaces.list()
    used = client.workspace
    columns = [
        Column("", lambda w: "*" if used in (w.name, w.id) else " "),
        Column("NAME", lambda w: w.name),
        Column("YOUR ROLE", lambda w: w.role, rank=1),
        Column("JOBS", lambda w: w.jobs, is_right=True, rank=2),
        Column("DATASETS", lambda w: w.datasets, is_right=True, rank=3),
        Column("CREATED", lambda w: w.created_at, rank=4),
    ]
    out.show(workspaces, lambda: out.table(workspaces, columns))


@app.command
def use(name: str, /) -> None:
    """Work in this workspace from now on (until SHOAL_WORKSPACE or -w says otherwise).

    For example:

      shoal workspace use vision
    """
    from shoal.client.config import ClientConfig
    from shoal.core.errors import NotFound
    from shoal.core.names import did_you_mean

    session.workspace = name
    with connect() as client:
        known = client.workspaces.list()
        found = next((w for w in known if name in (w.name, w.id)), None)
    if found is None:
        near = did_you_mean(name, [w.name for w in known])
        raise NotFound(f"There is no workspace '{name}' here.{near}", hint=f"{out.prog} workspace list")
    layout = Layout()
    config = ClientConfig.load(layout)
    config.workspace = found.name
    config.save(layout)
    out.show({"workspace": found.name}, lambda: out.say(f"Now working in '{found.name}'."))


@app.command
def rename(name: str, new_name: str, /) -> None:
    """Give a workspace another name. All that is in it stays, and running jobs are not disturbed.

    For example:

      shoal workspace rename vision images
    """
    from shoal.client.config import ClientConfig

    session.workspace = name
    with connect() as client:
        renamed = client.workspaces.rename(name, new_name)
    layout = Layout()
    config = ClientConfig.load(layout)
    if config.workspace == name:
        config.workspace = renamed.name
        config.save(layout)
    out.show(renamed, lambda: out.say(f"Workspace '{name}' is now '{renamed.name}'."))


@app.command
def delete(name: str, /, *, yes: bool = False) -> None:
    """Delete a workspace and everything in it.

    For example:

      shoal workspace delete vision
      shoal workspace delete vision --yes

    Parameters
    ----------
    yes
        Do not ask.
    """
    if not confirm(f"Delete workspace '{name}' with all its jobs and data?", yes=yes):
        out.say("Nothing was deleted.")
        return
    with connect() as client:
        client.workspaces.delete(name)
    out.show({"deleted": name}, lambda: out.say(f"Workspace '{name}' deleted."))


@app.command
def members() -> None:
    """List who is in the workspace, and as what.

    For example:

      shoal workspace members
      shoal workspace members -w vision
    """
    with connect() as client:
        found = client.members.list()
    columns = [
        Column("E-MAIL", lambda m: m.email),
        Column("NAME", lambda m: m.name),
        Column("ROLE", lambda m: m.role),
    ]
    out.show(found, lambda: out.table(found, columns))


@app.command
def invite(email: str, /, *, role: Literal["viewer", "member", "owner"] = "member") -> None:
    """Add a person to the workspace, or change their role.

    For example:

      shoal workspace invite ada@example.org
      shoal workspace invite bob@example.org --role viewer -w vision

    Parameters
    ----------
    email
        The address they signed up with.
    role
        viewer (look), member (run jobs; the default) or owner (manage members).
    """
    from shoal.core.people import Role

    with connect() as client:
        member = client.members.set(email, Role(role))
    out.show(member, lambda: out.say(f"{member.email} is now {member.role} of '{client.workspace}'."))


@app.command
def remove(email: str, /) -> None:
    """Remove a person from the workspace.

    For example:

      shoal workspace remove bob@example.org
    """
    with connect() as client:
        client.members.remove(email)
    out.show({"removed": email}, lambda: out.say(f"{email} is no longer in '{client.workspace}'."))
