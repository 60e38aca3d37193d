"""`shoal machine snapshot` and `restore`: saved volumes of leases, and new leases that start from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from shoal.cli.machine.rent import rent
from shoal.cli.shared.bulk import demand, each
from shoal.cli.shared.format import size
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import DeviceName
from shoal.cli.shared.session import connect
from shoal.client.waiting import poll
from shoal.core.errors import TimedOut

_MOST_S = 600.0
_PAUSE_S = 0.3

app = App(name="snapshot", help="List, take and delete snapshots: saved volumes of leases.")


@app.command(name="list")
def list_snapshots(lease: str | None = None, /) -> None:
    """List snapshots, newest first. A snapshot is taken when a lease ends and kept for some days.

    For example:

      shoal machine snapshot list
      shoal machine snapshot list box --json

    Parameters
    ----------
    lease
        Show only snapshots of the lease with this name.
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
    out.show(found, lambda: out.table(found, columns, empty="No snapshots yet. One is taken when a lease ends."))


@app.command
def take(lease: str, /) -> None:
    """Take a snapshot of a running lease. Its processes are paused for a moment, then continue.

    For example:

      shoal machine snapshot take box

    Parameters
    ----------
    lease
        Name or id of the lease.
    """
    with connect() as client:
        name = client.leases.get(lease).name
        before = client.snapshots.list(name)[:1]
        client.snapshots.request(lease)
        found = poll(
            lambda: client.snapshots.list(name)[:1],
            lambda newest: newest != before,
            within_s=_MOST_S,
            pause_s=_PAUSE_S,
        )
        if found == before:
            raise TimedOut(
                f"The snapshot of '{name}' was not ready within {_MOST_S:.0f} seconds.", hint=f"{out.prog} machine list"
            )
    out.show(found[0], lambda: out.info(f"The volume of '{name}' is saved as {found[0].id} ({size(found[0].size)})."))


@app.command
def delete(*snapshots: str) -> int:
    """Delete snapshots before they expire.

    For example:

      shoal machine snapshot delete snap_01jxyz

    Parameters
    ----------
    snapshots
        Ids of snapshots, or names of leases (deletes the newest snapshot of each).
    """
    demand(snapshots, "machine snapshot")
    with connect() as client:

        def act(name: str) -> None:
            client.snapshots.delete(name)
            out.info(f"Snapshot '{name}' deleted.")

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
    """Rent a share of any machine and start from a snapshot of an earlier lease.

    For example:

      shoal machine restore box
      shoal machine restore snap_01jxyz --name box2 --time 2d

    Parameters
    ----------
    snapshot
        Id of the snapshot, or the name of the lease it was taken from (the newest one).
    name
        Name of the new lease (default: a generated name).
    accels
        Number of slots (default 1).
    device
        Kind of slots: auto, any, gpu, cpu, cuda, rocm or xpu (see `machine rent`).
    time
        Duration of the lease, at most seven days (default 8h).
    ssh_key
        Public key file to authorize instead of those in ~/.ssh (repeatable).
    wait
        Wait until the lease is ready (default); --no-wait returns immediately.
    """
    return rent(accels=accels, device=device, time=time, name=name, ssh_key=ssh_key, wait=wait, restore=snapshot)
