"""`shoal swarm doctor`: all that is looked at before a machine joins, with what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli._output import Column, out
from shoal.cli._swarm_join import Place, open_door
from shoal.core.errors import Refused

if TYPE_CHECKING:
    from shoal.cli._swarm_checks import Check
    from shoal.client.swarm_peers import Door


def doctor(link: str, /, *, folder: Annotated[Path | None, Parameter(name="--dir")] = None) -> int:
    """Look whether this machine can join a swarm; exits with 4 if it cannot.

    For example:

      shoal swarm doctor https://shoal.example.org/join/shoalw_aW52…

    Parameters
    ----------
    link
        The link to the swarm; `-` reads it from stdin.
    folder
        Where code and data would go (default: swarms in the data directory).
    """
    from shoal.cli._swarm_checks import checks, look
    from shoal.core.settings import Layout

    with open_door(link) as door:
        offer, machine = look(door, (folder or Layout().root / "swarms").absolute())
        found = [*checks(offer, machine), _reach(door)]

    def show() -> None:
        columns = [
            Column("WHAT", lambda c: c.what),
            Column("", lambda c: "ok" if c.is_fine else "NO" if c.is_fatal else "hm"),
            Column("FOUND", lambda c: c.text, is_text=True),
            Column("WHAT TO DO", lambda c: c.fix, is_text=True),
        ]
        out.table(found, columns)

    rows = [{"what": c.what, "ok": c.is_fine, "fatal": c.is_fatal, "found": c.text, "fix": c.fix} for c in found]
    out.show(rows, show)
    return Refused.exit_code if any(check.is_fatal for check in found) else 0


def _reach(door: Door) -> Check:
    from shoal.cli._swarm_checks import Check

    place = Place.find(door, wanted_port=0, client_mode=False)
    if place.client_mode:
        text = "others cannot connect to this machine; it connects to them"
        return Check("reach", text, "Nothing need be done; a port opened to it makes the swarm faster: --port PORT")
    return Check("reach", f"others connect to {(place.announce or place.listen)[0]}")
