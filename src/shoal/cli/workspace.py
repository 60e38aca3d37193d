"""`shoal workspace`: workspaces and who is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cyclopts import App

from shoal.cli._output import Column, out
from shoal.cli._prompt import confirm
from shoal.cli._session import connect, session
from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.core.people import WorkspaceInvitationCreated

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
def invite(
    email: str | None = None,
    /,
    *,
    role: Literal["viewer", "member", "owner"] = "member",
    expires: str = "7d",
) -> None:
    """Add a person to the workspace, or change their role.

    Someone who has an account on the server is added at once. For anyone else
    this makes a link to send them: it works once, until it expires, and lets
    them make an account and join. Without an address, the link is for
    whoever gets it.

    For example:

      shoal workspace invite ada@example.org
      shoal workspace invite bob@example.org --role viewer -w vision
      shoal workspace invite --expires 2h

    Parameters
    ----------
    email
        Their e-mail address.
    role
        viewer (look), member (run jobs; the default) or owner (manage members).
    expires
        How long a link works (30m, 8h, 7d; at most 30 days).
    """
    from shoal.core.durations import parse_duration
    from shoal.core.errors import NotFound
    from shoal.core.invite_links import invite_link
    from shoal.core.people import Role

    life_s = int(parse_duration(expires, "--expires"))
    with connect() as client:
        if email is not None:
            try:
                member = client.members.set(email, Role(role))
            except NotFound as error:
                if "no_account" not in error.details:
                    raise
            else:
                out.show(member, lambda: out.say(f"{member.email} is now {member.role} of '{client.workspace}'."))
                return
        made = client.members.invite(email or "", Role(role), expires_in_s=life_s)
        link = invite_link(client.url, made.code)
    out.show(made.model_dump(mode="json") | {"link": link}, lambda: _print_invitation(made, link))


def _print_invitation(made: WorkspaceInvitationCreated, link: str) -> None:
    from shoal.client.config import is_loopback

    whom = made.email or "one person"
    out.say(f"Send this link to {whom}. It works once, until {made.expires_at:%Y-%m-%d %H:%M} UTC:")
    out.line(link)
    out.say(f"In a terminal they use it with: {out.prog} signup --invitation LINK")
    if is_loopback(link):
        out.warn(
            "This link works on this machine only. To let others in, have the server listen to the network: "
            f"{out.prog} server stop, then {out.prog} server start --host 0.0.0.0"
        )
    if made.email == "":
        out.say(f"Take it back with: {out.prog} workspace revoke {made.id}")


@app.command
def invitations() -> None:
    """List the open invitations to the workspace, newest first.

    For example:

      shoal workspace invitations
      shoal workspace invitations -w vision --json
    """
    with connect() as client:
        found = client.members.invitations()
    columns = [
        Column("ID", lambda i: i.id),
        Column("FOR", lambda i: i.email or "anyone"),
        Column("ROLE", lambda i: i.role, rank=1),
        Column("EXPIRES", lambda i: i.expires_at),
        Column("BY", lambda i: i.created_by, rank=2),
    ]
    empty = f"No open invitations. Make one: {out.prog} workspace invite"
    out.show(found, lambda: out.table(found, columns, empty=empty))


@app.command
def revoke(invitation: str, /) -> None:
    """Revoke an open invitation: its link stops working. Members stay.

    For example:

      shoal workspace revoke ada@example.org
      shoal workspace revoke winv_01k9zzzzzzzzzzzzzzzzzzzzzz

    Parameters
    ----------
    invitation
        Its id, or the e-mail address it is for.
    """
    with connect() as client:
        client.members.revoke_invitation(invitation)
    out.show({"revoked": invitation}, lambda: out.say(f"The invitation '{invitation}' does not work any more."))


@app.command
def join(invitation: str, /) -> None:
    """Join a workspace by an invitation, with the account you are signed in to.

    For example:

      shoal workspace join https://shoal.example.org/invite/shoali_4f…

    Parameters
    ----------
    invitation
        The link you got, or its code.
    """
    from shoal.cli.login import join_by
    from shoal.core.invite_links import parse_invite

    url, code = parse_invite(invitation)
    session.url = session.url or url
    joined = join_by(code)
    out.show(joined, lambda: out.say(f"You are now {joined.role} of '{joined.name}', which the next commands use."))


@app.command
def remove(email: str, /) -> None:
    """Remove a person from the workspace.

    For example:

      shoal workspace remove bob@example.org
    """
    with connect() as client:
        client.members.remove(email)
    out.show({"removed": email}, lambda: out.say(f"{email} is no longer in '{client.workspace}'."))
