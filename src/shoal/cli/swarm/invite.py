"""`shoal swarm invite`, `invitations` and `revoke`."""

from __future__ import annotations

from shoal.cli.shared.bulk import each
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_duration
from shoal.cli.shared.session import connect
from shoal.core.errors import UsageError


def invite(
    name: str,
    /,
    *,
    label: str = "invitation",
    expires: str = "7d",
    max_peers: int | None = None,
    address: str | None = None,
) -> None:
    """Create an invitation and print the command to join the swarm with it. It can be revoked.

    For example:

      shoal swarm invite gpt
      shoal swarm invite gpt --label lab --expires 2h --max-peers 5
      shoal swarm invite gpt --address https://shoal.example.org

    Parameters
    ----------
    name
        The swarm's name or id.
    label
        Name of the invitation (default: invitation).
    expires
        Lifetime of the invitation: 2h, 7d … (default 7d).
    max_peers
        Maximum number of peers that can use it (default: no limit).
    address
        Address of this server in the link, as peers reach it (default: the one you use).
    """
    from shoal.cli.swarm.page import join_link, print_link
    from shoal.core.swarm_views import InvitationCreate

    wanted = InvitationCreate(name=label, expires_in_s=int(parse_duration(expires, "--expires")), max_peers=max_peers)
    with connect() as client:
        made = client.swarms.invite(name, wanted)
        link = join_link(client, made.token, address)
    out.show({**made.model_dump(mode="json"), "link": link}, lambda: print_link(link, address=address))


def invitations(name: str, /) -> None:
    """List the invitations to a swarm, newest first. Their links are not shown again.

    For example:

      shoal swarm invitations gpt

    Parameters
    ----------
    name
        The swarm's name or id.
    """
    with connect() as client:
        found = client.swarms.invitations(name)
    columns = [
        Column("NAME", lambda i: i.name),
        Column("OPEN", lambda i: "yes" if i.is_open else "revoked" if i.revoked_at else "no"),
        Column(
            "PEERS", lambda i: i.peers if i.max_peers is None else f"{i.peers} of {i.max_peers}", is_right=True, rank=1
        ),
        Column("EXPIRES", lambda i: i.expires_at, rank=1),
        Column("BY", lambda i: i.created_by, rank=2),
        Column("ID", lambda i: i.id, is_id=True),
    ]
    out.show(found, lambda: out.table(found, columns))


def revoke(name: str, /, *which: str) -> int:
    """Revoke invitations, so that no more peers can join with them. Peers that joined stay (see `shoal swarm kick`).

    For example:

      shoal swarm revoke gpt first
      shoal swarm revoke gpt inv_01m7jbdx1y1y31xkdphxkrewn5

    Parameters
    ----------
    name
        The swarm's name or id.
    which
        Names or ids of the invitations.
    """
    if not which:
        raise UsageError("Name at least one invitation.", hint=f"{out.prog} swarm invitations {name}")
    with connect() as client:

        def revoke_one(one: str) -> object:
            client.swarms.revoke(name, one)
            out.info(f"Invitation '{one}' is revoked.")
            return {"revoked": one}

        return each(which, revoke_one)
