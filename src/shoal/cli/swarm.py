"""`shoal swarm`: train one model together, from `create` to `delete`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from shoal.cli._each import demand, each
from shoal.cli._output import Column, out
from shoal.cli._prompt import confirm
from shoal.cli._session import connect
from shoal.cli._swarm_create import create
from shoal.cli._swarm_doctor import doctor
from shoal.cli._swarm_invite import invitations, invite, revoke
from shoal.cli._swarm_join import join

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
        How many at most (default 50).
    """
    from shoal.cli._swarm_page import number

    with connect() as client:
        swarms = client.swarms.list(limit=limit)
    columns = [
        Column("NAME", lambda s: s.name),
        Column("STATUS", lambda s: s.status, is_status=True),
        Column("PEERS", lambda s: s.peers, is_right=True, rank=1),
        Column("ROUND", lambda s: s.round, is_right=True, rank=2),
        Column("SAMPLES", lambda s: s.samples, is_right=True, rank=4),
        Column("LOSS", lambda s: number(s.loss), is_right=True, rank=3),
        Column("CREATED", lambda s: s.created_at, rank=3),
        Column("ID", lambda s: s.id, is_id=True),
    ]
    empty = f"No swarms yet. Make one: {out.prog} swarm create NAME --target-batch-size 512 -- train.py"
    out.show(swarms, lambda: out.table(swarms, columns, empty=empty))


@app.command
def inspect(name: str, /) -> None:
    """Show all about a swarm: how far it is, its terms, its keeper, what happened.

    For example:

      shoal swarm inspect gpt
      shoal swarm inspect gpt --json

    Parameters
    ----------
    name
        The swarm's name or id.
    """
    from shoal.cli._swarm_page import print_swarm

    with connect() as client:
        swarm = client.swarms.get(name)
    out.show(swarm, lambda: print_swarm(swarm))


@app.command
def peers(name: str, /) -> None:
    """List who has joined a swarm, and what each contributed.

    For example:

      shoal swarm peers gpt

    Parameters
    ----------
    name
        The swarm's name or id.
    """
    from shoal.cli._swarm_page import PEER_COLUMNS

    with connect() as client:
        found = client.swarms.peers(name)
    empty = f"Nobody has joined yet. Invite someone: {out.prog} swarm invite {name}"
    out.show(found, lambda: out.table(found, PEER_COLUMNS, empty=empty))


@app.command
def checkpoints(name: str, /) -> None:
    """List what was kept of a swarm, oldest first. `shoal checkpoint fetch` gets one.

    For example:

      shoal swarm checkpoints gpt

    Parameters
    ----------
    name
        The swarm's name or id.
    """
    from shoal.cli._format import size
    from shoal.cli._swarm_page import number

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
    """Send a peer away from a swarm, for good.

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
        What to tell it.
    revoke
        Revoke the invitation it came by, too: else it can join again under another key.
    """
    from shoal.core.swarm_views import Kick

    with connect() as client:
        found = client.swarms.kick(name, peer, Kick(reason=reason, revoke=revoke))
    out.show(found, lambda: out.say(f"Peer '{found.name}' ({found.id}) is out of swarm '{name}'."))


@app.command
def stop(*names: str) -> int:
    """Stop swarms: a last checkpoint is kept, and all peers leave. `shoal swarm resume` goes on from there.

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
            out.say(f"Swarm '{swarm.name}' is {swarm.status}.")
            return swarm

        return each(names, stop_one)


@app.command
def resume(name: str, /, *, force: bool = False, address: str | None = None) -> None:
    """Go on with a swarm from its newest checkpoint, and print a new command to join by.

    For one that was stopped, or whose peers are all gone. Links of before work
    too, unless they have expired.

    For example:

      shoal swarm resume gpt
      shoal swarm resume gpt --force

    Parameters
    ----------
    name
        The swarm's name or id.
    force
        Also while peers were just heard of: those that live go back to the checkpoint, too.
    address
        Of this server in the link, as peers reach it (default: as you do).
    """
    from shoal.cli._swarm_page import join_link, tell_link
    from shoal.core.swarm_views import InvitationCreate

    with connect() as client:
        swarm = client.swarms.resume(name, force=force)
        made = client.swarms.invite(name, InvitationCreate(name="resumed"))
        link = join_link(client, made.token, address)
    where = f"from {swarm.checkpoint}" if swarm.checkpoint else "from the beginning: it has no checkpoint"
    out.say(f"Swarm '{swarm.name}' goes on {where}.")
    out.show({**swarm.model_dump(mode="json"), "link": link}, lambda: tell_link(link, address=address))


@app.command
def delete(*names: str, yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False) -> int:
    """Delete swarms that were stopped. Their checkpoints stay.

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
        out.say("Nothing was deleted.")
        return 0
    with connect() as client:

        def delete_one(name: str) -> object:
            client.swarms.delete(name)
            out.say(f"Swarm '{name}' deleted.")
            return {"deleted": name}

        return each(names, delete_one)
