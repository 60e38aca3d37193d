"""`shoal workspace`: workspaces and their members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cyclopts import App

from shoal.cli.shared.output import Column, out
from shoal.cli.shared.prompt import confirm
from shoal.cli.shared.session import connect, session
from shoal.core.install import install_command
from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.core.people import WorkspaceInvitationCreated

app = App(name="workspace")


@app.command
def create(name: str, /) -> None:
    """Create a workspace, with you as its owner.

    For example:

      shoal workspace create vision
      shoal workspace use vision
    """
    with connect() as client:
        workspace = client.workspaces.create(name)
    out.show(workspace, lambda: out.info(f"Workspace '{name}' created. Switch to it: {out.prog} workspace use {name}"))


@app.command(name="list")
def list_workspaces() -> None:
    """List the workspaces you are a member of; the current one is marked.

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
    """Make a workspace the current one (SHOAL_WORKSPACE and -w override it).

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
    out.show({"workspace": found.name}, lambda: out.info(f"Now working in '{found.name}'."))


@app.command
def rename(name: str, new_name: str, /) -> None:
    """Rename a workspace. Its content is kept, and running jobs are not affected.

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
    out.show(renamed, lambda: out.info(f"Workspace '{name}' is now '{renamed.name}'."))


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
        out.info("Nothing was deleted.")
        return
    with connect() as client:
        client.workspaces.delete(name)
    out.show({"deleted": name}, lambda: out.info(f"Workspace '{name}' deleted."))


@app.command
def members() -> None:
    """List the members of the workspace and their roles.

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

    A person with an account on the server is added immediately. For anyone
    else, this prints a link to send them. It works once, until it expires, and
    lets them create an account and join. Without an e-mail address, anyone
    with the link can use it.

    For example:

      shoal workspace invite ada@example.org
      shoal workspace invite bob@example.org --role viewer -w vision
      shoal workspace invite --expires 2h

    Parameters
    ----------
    email
        E-mail address of the person.
    role
        Role: viewer (read only), member (run jobs; the default) or owner (manage members).
    expires
        Lifetime of the link (30m, 8h, 7d; at most 30 days).
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
                out.show(member, lambda: out.info(f"{member.email} is now {member.role} of '{client.workspace}'."))
                return
        made = client.members.invite(email or "", Role(role), expires_in_s=life_s)
        server = client.address()
        link = invite_link(server.url, made.code, server.ca_fingerprint)
    install = install_command(server=server.url, fingerprint=server.ca_fingerprint, invitation=made.code)
    shown = made.model_dump(mode="json") | {"link": link, "install": install}
    out.show(shown, lambda: _print_invitation(made, link, install))


def _print_invitation(made: WorkspaceInvitationCreated, link: str, install: str) -> None:
    from shoal.client.config import is_loopback

    whom = made.email or "one person"
    out.info(f"Send this link to {whom}. It works once, until {made.expires_at:%Y-%m-%d %H:%M} UTC:")
    out.line(link)
    if is_loopback(link):
        out.warn(
            "This link works on this machine only. To let others join, share the server: "
            f"{out.prog} server share --email YOU@example.org"
        )
    elif "--join" in install:
        out.info("They open it in a browser, or paste this line into a terminal, which installs Shoal and signs up:")
        out.line(install)
        out.info(f"With Shoal installed: {out.prog} signup --invitation LINK")
    else:
        out.info(f"They open it in a browser, or in a terminal: {install}")
        out.info(f"and then: {out.prog} signup --invitation LINK")
    if made.email == "":
        out.info(f"Revoke it with: {out.prog} workspace revoke {made.id}")


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
    empty = f"No open invitations. Create one: {out.prog} workspace invite"
    out.show(found, lambda: out.table(found, columns, empty=empty))


@app.command
def revoke(invitation: str, /) -> None:
    """Revoke an open invitation: its link stops working. Existing members are kept.

    For example:

      shoal workspace revoke ada@example.org
      shoal workspace revoke winv_01k9zzzzzzzzzzzzzzzzzzzzzz

    Parameters
    ----------
    invitation
        Id of the invitation, or the e-mail address it is for.
    """
    with connect() as client:
        client.members.revoke_invitation(invitation)
    out.show({"revoked": invitation}, lambda: out.info(f"Invitation '{invitation}' revoked."))


@app.command
def join(invitation: str, /) -> None:
    """Accept an invitation to a workspace with the account you are signed in to.

    For example:

      shoal workspace join https://shoal.example.org/invite/shoali_4f…

    Parameters
    ----------
    invitation
        Link or code of the invitation.
    """
    from shoal.cli.login import join_by
    from shoal.core.invite_links import parse_invite

    invite = parse_invite(invitation)
    session.url = session.url or invite.url
    joined = join_by(invite.code)
    out.show(joined, lambda: out.info(f"You are now {joined.role} of '{joined.name}'. It is your current workspace."))


@app.command
def remove(email: str, /) -> None:
    """Remove a person from the workspace.

    For example:

      shoal workspace remove bob@example.org
    """
    with connect() as client:
        client.members.remove(email)
    out.show({"removed": email}, lambda: out.info(f"{email} is no longer in '{client.workspace}'."))
