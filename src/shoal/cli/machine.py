"""`shoal machine`: the pool."""

from __future__ import annotations

from cyclopts import App

from shoal.cli._output import Column, out
from shoal.cli._session import connect

app = App(name="machine")


@app.command(name="list")
def list_machines() -> None:
    """List machines with their slots, all and free.

    A slot is an accelerator, or a share of the CPU where there is none;
    --accels of `training run` counts slots per node.

    For example:

      shoal machine list
      shoal machine list --json
    """
    with connect() as client:
        pool = client.machines.capacity()
    columns = [
        Column("NAME", lambda m: m.name),
        Column("KIND", lambda m: m.kind),
        Column("SLOTS", lambda m: m.slots_total, is_right=True),
        Column("FREE", lambda m: m.slots_free, is_right=True),
        Column("STATE", lambda m: m.state, is_status=True),
        Column("PROBLEMS", lambda m: "; ".join(m.problems)),
    ]
    out.show(pool, lambda: out.table(pool.machines, columns, empty="No machines yet."))
