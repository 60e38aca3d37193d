"""`shoal machine snapshot` and `restore`: what leases have left behind, and how to go on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from shoal.cli._each import demand, each
from shoal.cli._format import size
from shoal.cli._machine_rent import rent
from shoal.cli._output import Column, out
from shoal.cli._parse import DeviceName
from shoal.cli._session import connect
from shoal.client.waiting import poll
from shoal.core.errors import TimedOut

_MOST_S = 600.0
_PAUSE_S = 0.3

app = App(name="snapshot", help="Snapshots: what was on the volumes of leases that have ended.")


@app.command(name="list")
def list_snapshots(lease: str | None = None, /) -> None:
    """List snapshots, newest first. One is made when a lease ends, and is kept for some days.

    For example:

      shoal machine snapshot list
      shoal machine snapshot list box --json

    Parameters
    ----------
    lease
        Only those of the lease of this name.
    """
    with connect() as client:
        found = client.snapshots.list(lease)
    columns = [
        Column("ID", lambda s: s.id),
        Column("LEASE", lambda s: s.lease),
        Column("MACHINE", lambda s: s.machine, rank=4),
        Column("FILES", lambda s: s.files, is_right=True, rank=3),
        Column("SIZE", lambda s: size(s.size), is_right=True, rank=2),
        Column("CREATED", lambda s: s.created_at, rank=2),
        Column("KEPT UNTIL", lambda s: s.expires_at, rank=1),
    ]
    out.show(found, lambda: out.table(found, columns, empty="No snapshots yet: one is made when a lease ends."))


@app.command
def take(lease: str, /) -> None:
    """Take a snapshot of a lease now; it goes on. Everybody on it is held for the moment that takes.

    For example:

      shoal machine snapshot take box

    Parameters
    ----------
    lease
        Its name or id.
    """
    with connect() as client:
        name = client.leases.get(lease).name
        before = client.snapshots.list(name)[:1]
        client.snapshots.ask(lease)
        found = poll(
            lambda: client.snapshots.list(name)[:1],
            lambda newest: newest != before,
            within_s=_MOST_S,
            pause_s=_PAUSE_S,
        )
        if found == before:
            raise TimedOut(
                f"No snapshot of '{name}' came within {_MOST_S:.0f} seconds.", hint=f"{out.prog} machine list"
            )
    out.show(found[0], lambda: out.say(f"The volume of '{name}' is safe as {found[0].id} ({size(found[0].size)})."))


@app.command
def delete(*snapshots: str) -> int:
    """Remove snapshots before their time.

    For example:

      shoal machine snapshot delete snap_01jxyz

    Parameters
    ----------
    snapshots
        Their ids, or names of leases (the newest of each).
    """
    demand(snapshots, "machine snapshot")
    with connect() as client:

        def act(name: str) -> None:
            client.snapshots.delete(name)
            out.say(f"Snapshot '{name}' is gone.")

        return each(snapshots, act)


def restore(
    snapshot: str,
    /,
    *,
    name: str | None = None,
    accels: int = 1,
    device: DeviceName = "auto",
    time: str = "8h",
    ssh_key: Annotated[list[Path] | None, Parameter(negative=(), consume_multiple=False)] = None,
    wait: Annotated[bool, Parameter(negative="--no-wait")] = True,
) -> int:
    """Rent again, on any machine, with everything that was on an earlier lease's volume.

    For example:

      shoal machine restore box
      shoal machine restore snap_01jxyz --name box2 --time 2d

    Parameters
    ----------
    snapshot
        Its id, or the name of the lease it was taken from (the newest).
    name
        What to call the new lease (default: one is made up).
    accels
        Slots (default 1).
    device
        Kind of slots: auto, any, cpu, cuda, rocm or xpu (see `machine rent`).
    time
        For how long, at most seven days (default 8h).
    ssh_key
        A public key that opens it, instead of yours in ~/.ssh; may be given several times.
    wait
        Wait until it can be used (default: yes; --no-wait returns at once).
    """
    return rent(accels=accels, device=device, time=time, name=name, ssh_key=ssh_key, wait=wait, restore=snapshot)
