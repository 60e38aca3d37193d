"""`shoal machine`: what there is to run on, and shares of it rented by SSH."""

from __future__ import annotations

from cyclopts import App

from shoal.cli._machine_rent import extend, lease_columns, release, rent, restart
from shoal.cli._machine_snapshot import app as snapshot
from shoal.cli._machine_snapshot import restore
from shoal.cli._machine_ssh import cp, ssh
from shoal.cli._output import Column, out
from shoal.cli._session import connect

app = App(name="machine")
app.command(rent, sort_key=0)
app.command(ssh, usage=f"Usage: {out.prog} machine ssh LEASE [OPTIONS] [-- COMMAND...]")
for command in (cp, extend, restart, release, snapshot, restore):
    app.command(command)


@app.command(name="list")
def list_machines() -> None:
    """List machines with their slots, all and free, and your workspace's leases.

    A slot is an accelerator, or a share of the CPU where there is none;
    --accels of `training run` and `machine rent` counts slots per node.

    For example:

      shoal machine list
      shoal machine list --json
    """
    with connect() as client:
        pool = client.machines.capacity()
        leases = client.leases.list()
    columns = [
        Column("NAME", lambda m: m.name),
        Column("KIND", lambda m: m.kind, rank=2),
        Column("SLOTS", lambda m: m.slots_total, is_right=True, rank=1),
        Column("FREE", lambda m: m.slots_free, is_right=True),
        Column("STATE", lambda m: m.state, is_status=True),
        Column("PROBLEMS", lambda m: "; ".join(m.problems), is_text=True),
    ]

    def human() -> None:
        out.table(pool.machines, columns, empty="No machines yet.")
        if leases:
            out.line()
            out.table(leases, lease_columns())

    out.show({**pool.model_dump(), "leases": leases}, human)
