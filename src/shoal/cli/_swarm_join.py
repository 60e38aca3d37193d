"""`shoal swarm join`: check the link and the machine, find the place where others reach it, and take part."""

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

from shoal.cli._output import out
from shoal.cli._session import session
from shoal.core.errors import Refused, UsageError
from shoal.core.names import NAME_PATTERN
from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.client.swarm_peers import Door

KEEPER_WAIT_S = 60.0
"""A swarm that was just made has its server's peer up within this."""


def join(
    link: str,
    /,
    *,
    name: str | None = None,
    folder: Annotated[Path | None, Parameter(name="--dir")] = None,
    client_mode: bool = False,
    port: int = 0,
) -> int:
    """Train in a swarm, on this machine, until Ctrl-C.

    The machine is checked first; then the swarm's code and data are fetched by
    their hashes, and its script runs here, as you: join swarms of people you
    trust. Outbound connections are enough. If the network fails, it comes back
    by itself. The first Ctrl-C leaves in good order, a second one at once.

    For example:

      shoal swarm join https://shoal.example.org/join/shoalw_aW52…
      shoal swarm join shoalw_aW52… --name laptop --dir /data/swarm

    Parameters
    ----------
    link
        The link, or only its last part with a server of your own (--url, SHOAL_URL); `-` reads it from stdin.
    name
        What the others see you as (default: this machine's name).
    folder
        Where code, data and logs go (default: swarms in the data directory).
    client_mode
        Do not let others connect to this machine (default: as the server finds it).
    port
        Where others connect to (default: a free one).
    """
    from shoal.cli._swarm_checks import checks, look, refuse
    from shoal.cli._swarm_peer import take_part

    with open_door(link) as door:
        base = (folder or Layout().root / "swarms").absolute()
        out.dim(f"Looking at this machine, and for {door.url} …")
        offer, machine = look(door, base, wait_s=KEEPER_WAIT_S)
        found = checks(offer, machine)
        refuse(found)
        for check in found:
            if not check.is_fine:
                out.warn(f"{check.what}: {check.text}")
        place = Place.find(door, wanted_port=port, client_mode=client_mode)
        return take_part(door, offer, machine.facts, place, base=base / "joined", name=name or _own_name())


@contextmanager
def open_door(link: str) -> Iterator[Door]:
    """The way in, if the link is whole and has not expired."""
    from shoal.client.config import find_target
    from shoal.client.local import running_server
    from shoal.client.swarm_peers import Door
    from shoal.core.invitations import check_time, split_link, unseal

    server, token = split_link(sys.stdin.readline() if link == "-" else link)
    check_time(unseal(token))
    if server is None:
        layout = Layout()
        record = running_server(layout)
        server = find_target(layout, url=session.url).url or (record.url if record else None)
    if server is None:
        raise UsageError(
            "That is a link without its server.", hint=f"{out.prog} swarm join http://SERVER/join/{token[:12]}…"
        )
    with Door(server, token) as door:
        yield door


@dataclass(frozen=True, slots=True)
class Place:
    """Where others find this machine, if they can."""

    client_mode: bool
    listen: list[str]
    announce: list[str] | None = None

    @classmethod
    def find(cls, door: Door, *, wanted_port: int, client_mode: bool) -> Place:
        """The server knocks at a port; where it gets through, other peers will."""
        if client_mode:
            return cls(True, [])
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", wanted_port))
            except OSError as error:
                raise Refused(
                    f"Port {wanted_port} cannot be used here: {error.strerror}.",
                    hint="Leave --port out, or give another.",
                ) from None
            probe.listen(1)
            port = probe.getsockname()[1]
            answer = door.knock(port)
        if not answer.reached:
            return cls(True, [])
        if answer.address.startswith("127."):
            return cls(False, [f"/ip4/127.0.0.1/tcp/{port}"])
        kind = "ip6" if ":" in answer.address else "ip4"
        return cls(False, [f"/ip4/0.0.0.0/tcp/{port}"], [f"/{kind}/{answer.address}/tcp/{port}"])


def _own_name() -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63]
    return name if re.fullmatch(NAME_PATTERN, name) else "peer"
