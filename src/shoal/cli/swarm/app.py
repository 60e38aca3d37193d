"""`shoal swarm`: train one model together, from `create` to `delete`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from shoal.cli.shared.bulk import demand, each
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.prompt import confirm
from shoal.cli.shared.session import connect
from shoal.cli.swarm.create import create
from shoal.cli.swarm.doctor import doctor
from shoal.cli.swarm.invite import invitations, invite, revoke
from shoal.cli.swarm.join import join

app = App(name="swarm")
app.command(
    create,
    sort_key=0,
    usage=f"Usage: {out.prog} swarm create NAME --target-batch-size N [OPTIONS] -- SCRIPT [ARGS...]",
)
app.command(join, sort_key=1)
for command in (invite, invitations, revoke, doctor):
    app.command(command)


@app.command(name="list")
def list_swarms(*, limit: int = 50) -> None:
    """List the swarms of the workspace, newest first.

    For example:

      shoal swarm list
      shoal swarm list --limit 10 --json

    Parameters
    ----------
    limit
        Maximum number of swarms to show (default 50).
    """
    from shoal.cli.swarm.page import SWARM_COLUMNS

    with connect() as client:
        swarms = client.swarms.list(limit=limit)
    empty = f"No swarms yet. Create one: {out.prog} swarm create NAME --target-batch-size 512 -- train.py"
    out.show(swarms, lambda: out.table(swarms, SWARM_COLUMNS, empty=empty))


@app.command
def inspect(name: str, /) -> None:
    """Show the details of a swarm: progress, terms, coordinator and events.

    For example:

      shoal swarm inspect gpt
      shoal swarm inspect gpt --json

    Parameters
    ----------
    name
        The swarm's name or id.
    """
    from shoal.cli.swarm.page import print_swarm

    with connect() as client:
        swarm = client.swarms.get(name)
    out.show(swarm, lambda: print_swarm(swarm))


@app.command
def peers(name: str, /) -> None:
    """List the peers of a swarm and their contributions.

    For example:

      shoal swarm peers gpt

    Parameters
    ----------
    name
        The swarm's name or id.
    """
    from shoal.cli.swarm.page import PEER_COLUMNS

    with connect() as client:
        found = client.swarms.peers(name)
    empty = f"No peers have joined yet. Invite some: {out.prog} swarm invite {name}"
    out.show(found, lambda: out.table(found, PEER_COLUMNS, empty=empty))


@app.command
def checkpoints(name: str, /) -> None:
    """List the checkpoints of a swarm, oldest first. Download one with `shoal checkpoint fetch`.

    For example:

      shoal swarm checkpoints gpt

    Parameters
    ----------
    name
        The swarm's name or id.
    """
    from shoal.cli.shared.format import size
    from shoal.cli.swarm.page import number

    with connect() as client:
        found = client.swarms.checkpoints(name)
    columns = [
        Column("NAME", lambda c: c.name),
        Column("ROUND", lambda c: c.step, is_right=True, rank=2),
        Column("LOSS", lambda c: number(c.train_loss), is_right=True, rank=3),
        Column("SIZE", lambda c: size(c.size), is_right=True, rank=2),
        Column("SAVED", lambda c: c.timestamp, rank=1),
        Column("ID", lambda c: c.id, is_id=True),
    ]
    out.show(found, lambda: out.table(found, columns, empty="No checkpoints yet."))


@app.command
def kick(name: str, peer: str, /, *, reason: str = "", revoke: bool = False) -> None:
    """Remove a peer from a swarm permanently.

    For example:

      shoal swarm kick gpt laptop
      shoal swarm kick gpt peer_01m7jbdx1y1y31xkdphxkrewn5 --reason "sends noise" --revoke

    Parameters
    ----------
    name
        The swarm's name or id.
    peer
        The peer's name or id.
    reason
        Reason to show to the peer.
    revoke
        Also revoke the invitation it used. Otherwise it can join again with another key.
    """
    from shoal.core.swarm_views import Kick

    with connect() as client:
        found = client.swarms.kick(name, peer, Kick(reason=reason, revoke=revoke))
    out.show(found, lambda: out.info(f"Peer '{found.name}' ({found.id}) was removed from swarm '{name}'."))


@app.command
def stop(*names: str) -> int:
    """Stop swarms. A last checkpoint is saved, and all peers leave. Continue with `shoal swarm resume`.

    For example:

      shoal swarm stop gpt

    Parameters
    ----------
    names
        The swarms' names or ids.
    """
    demand(names, "swarm")
    with connect() as client:

        def stop_one(name: str) -> object:
            swarm = client.swarms.stop(name)
            out.info(f"Swarm '{swarm.name}' is {swarm.status}.")
            return swarm

        return each(names, stop_one)


@app.command
def resume(name: str, /, *, force: bool = False, address: str | None = None) -> None:
    """Resume a swarm from its newest checkpoint, and print a new command to join it.

    Use it for a swarm that was stopped or has lost all its peers. Earlier
    links still work unless they have expired.

    For example:

      shoal swarm resume gpt
      shoal swarm resume gpt --force

    Parameters
    ----------
    name
        The swarm's name or id.
    force
        Resume even if peers are still active; they go back to the checkpoint too.
    address
        Address of this server in the link, as peers reach it (default: the one you use).
    """
    from shoal.cli.swarm.page import join_link, print_link
    from shoal.core.swarm_views import InvitationCreate

    with connect() as client:
        swarm = client.swarms.resume(name, force=force)
        made = client.swarms.invite(name, InvitationCreate(name="resumed"))
        link = join_link(client, made.token, address)
    where = f"from {swarm.checkpoint}" if swarm.checkpoint else "from the beginning: it has no checkpoint"
    out.info(f"Swarm '{swarm.name}' continues {where}.")
    out.show({**swarm.model_dump(mode="json"), "link": link}, lambda: print_link(link, address=address))


@app.command
def delete(*names: str, yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False) -> int:
    """Delete stopped swarms. Their checkpoints are kept.

    For example:

      shoal swarm delete gpt --yes

    Parameters
    ----------
    names
        The swarms' names or ids.
    yes
        Do not ask.
    """
    demand(names, "swarm")
    if not confirm(f"Delete {', '.join(map(repr, names))}?", yes=yes):
        out.info("Nothing was deleted.")
        return 0
    with connect() as client:

        def delete_one(name: str) -> object:
            client.swarms.delete(name)
            out.info(f"Swarm '{name}' deleted.")
            return {"deleted": name}

        return each(names, delete_one)
