"""`shoal swarm join`: check the link and the machine, find its address for other peers, and train."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli.shared.output import out
from shoal.cli.shared.session import session
from shoal.core.errors import Refused, UsageError
from shoal.core.names import NAME_PATTERN
from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.client.swarm_peers import InvitationClient

COORDINATOR_WAIT_S = 60.0
"""Seconds to wait for the coordinator of a swarm that was just created."""


def join(
    link: str,
    /,
    *,
    name: str | None = None,
    folder: Annotated[Path | None, Parameter(name="--dir")] = None,
    client_mode: bool = False,
    port: int = 0,
) -> int:
    """Join a swarm and train on this machine until Ctrl-C.

    The machine is checked first. Then the swarm's code and data are downloaded
    and verified, and its script runs with your permissions: join only swarms
    of people you trust. Outbound connections are enough. After a network
    failure it joins again automatically. The first Ctrl-C leaves the swarm
    cleanly, a second one immediately.

    For example:

      shoal swarm join https://shoal.example.org/join/shoalw_aW52…
      shoal swarm join shoalw_aW52… --name laptop --dir /data/swarm

    Parameters
    ----------
    link
        The link, or only its last part if the server is given by --url or SHOAL_URL; `-` reads it from stdin.
    name
        Name of this peer, visible to others (default: this machine's name).
    folder
        Folder for code, data and logs (default: swarms in the data directory).
    client_mode
        Do not accept connections from other peers (default: accept them if the server can reach this machine).
    port
        Port for connections from other peers (default: a free port).
    """
    from shoal.cli.swarm.checks import checks, examine, refuse
    from shoal.cli.swarm.peer import join_and_train

    with open_invitation(link) as invitation:
        base = (folder or Layout().root / "swarms").absolute()
        out.dim(f"Checking this machine and the connection to {invitation.url} …")
        offer, machine = examine(invitation, base, wait_s=COORDINATOR_WAIT_S)
        found = checks(offer, machine)
        refuse(found)
        for check in found:
            if not check.is_fine:
                out.warn(f"{check.what}: {check.text}")
        place = Place.find(invitation, wanted_port=port, client_mode=client_mode)
        return join_and_train(invitation, offer, machine.facts, place, base=base / "joined", name=name or _own_name())


@contextmanager
def open_invitation(link: str) -> Iterator[InvitationClient]:
    """Yield a connection to the swarm's server if the link is valid and has not expired."""
    from shoal.client.config import find_target
    from shoal.client.local import running_server
    from shoal.client.swarm_peers import InvitationClient
    from shoal.client.trust import trust_by_fingerprint
    from shoal.core.invitations import check_time, split_link, unseal
    from shoal.core.invite_links import fingerprint_in

    link = sys.stdin.readline() if link == "-" else link
    server, token = split_link(link)
    check_time(unseal(token))
    if server is None:
        layout = Layout()
        record = running_server(layout)
        server = find_target(layout, url=session.url).url or (record.url if record else None)
    if server is None:
        raise UsageError(
            "The link does not name a server.", hint=f"{out.prog} swarm join http://SERVER/join/{token[:12]}…"
        )
    if server.startswith("https://") and (fingerprint := fingerprint_in(link)):
        trust_by_fingerprint(server, fingerprint)
    with InvitationClient(server, token) as invitation:
        yield invitation


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses at which other peers reach this machine; none in client mode."""

    client_mode: bool
    listen: list[str]
    announce: list[str] | None = None

    @classmethod
    def find(cls, invitation: InvitationClient, *, wanted_port: int, client_mode: bool) -> Place:
        """Let the server try to connect to a port of this machine: if it succeeds, other peers can connect too."""
        if client_mode:
            return cls(True, [])
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", wanted_port))
            except OSError as error:
                raise Refused(
                    f"Port {wanted_port} cannot be used on this machine: {error.strerror}.",
                    hint="Omit --port, or choose another port.",
                ) from None
            probe.listen(1)
            port = probe.getsockname()[1]
            answer = invitation.knock(port)
        if not answer.reached:
            return cls(True, [])
        if answer.address.startswith("127."):
            return cls(False, [f"/ip4/127.0.0.1/tcp/{port}"])
        kind = "ip6" if ":" in answer.address else "ip4"
        return cls(False, [f"/ip4/0.0.0.0/tcp/{port}"], [f"/{kind}/{answer.address}/tcp/{port}"])


def _own_name() -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63]
    return name if re.fullmatch(NAME_PATTERN, name) else "peer"
