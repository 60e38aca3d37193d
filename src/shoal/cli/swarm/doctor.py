"""`shoal swarm doctor`: show all checks that are made before a machine joins a swarm, and how to fix problems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli.shared.output import Column, out
from shoal.cli.swarm.join import Place, open_invitation
from shoal.core.errors import Refused

if TYPE_CHECKING:
    from shoal.cli.swarm.checks import Check
    from shoal.client.swarm_peers import InvitationClient


def doctor(link: str, /, *, folder: Annotated[Path | None, Parameter(name="--dir")] = None) -> int:
    """Check whether this machine can join a swarm; exit 4 if it cannot.

    For example:

      shoal swarm doctor https://shoal.example.org/join/shoalw_aW52…

    Parameters
    ----------
    link
        Link to the swarm; `-` reads it from stdin.
    folder
        Folder for code and data (default: swarms in the data directory).
    """
    from shoal.cli.swarm.checks import checks, examine
    from shoal.core.settings import Layout

    with open_invitation(link) as invitation:
        offer, machine = examine(invitation, (folder or Layout().root / "swarms").absolute())
        found = [*checks(offer, machine), _reach(invitation)]

    def show() -> None:
        columns = [
            Column("WHAT", lambda c: c.what),
            Column("", lambda c: "ok" if c.is_fine else "FAIL" if c.is_fatal else "warn"),
            Column("FOUND", lambda c: c.text, is_text=True),
            Column("WHAT TO DO", lambda c: c.fix, is_text=True),
        ]
        out.table(found, columns)

    rows = [{"what": c.what, "ok": c.is_fine, "fatal": c.is_fatal, "found": c.text, "fix": c.fix} for c in found]
    out.show(rows, show)
    return Refused.exit_code if any(check.is_fatal for check in found) else 0


def _reach(invitation: InvitationClient) -> Check:
    from shoal.cli.swarm.checks import Check

    place = Place.find(invitation, wanted_port=0, client_mode=False)
    if place.client_mode:
        text = "other peers cannot connect to this machine; it connects to them"
        return Check("reach", text, "Optional: an open port makes the swarm faster: --port PORT")
    return Check("reach", f"other peers connect to {(place.announce or place.listen)[0]}")
