"""`shoal machine`: machines and their slots, and rented shares of them that are used by SSH."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from shoal.cli.machine.rent import extend, lease_columns, release, rent, restart
from shoal.cli.machine.snapshot import app as snapshot
from shoal.cli.machine.snapshot import restore
from shoal.cli.machine.ssh import cp, ssh
from shoal.cli.shared.format import size, timestamp
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.session import connect
from shoal.core.errors import NotFound

_HISTORY = [
    Column("MACHINE", lambda r: r.machine),
    Column("DEVICE", lambda r: r.label),
    Column("MODEL", lambda r: r.model, rank=1),
    Column("UUID", lambda r: r.uuid, rank=2),
    Column("FROM", lambda r: timestamp(r.since)),
    Column("UNTIL", lambda r: timestamp(r.until) if r.until else "now"),
    Column("PROBLEM", lambda r: r.problem or "none", is_text=True),
]

app = App(name="machine")
app.command(rent, sort_key=0)
app.command(ssh, usage=f"Usage: {out.prog} machine ssh LEASE [OPTIONS] [-- COMMAND...]")
for command in (cp, extend, restart, release, snapshot, restore):
    app.command(command)


@app.command(name="list")
def list_machines() -> None:
    """List machines with their total and free slots, and your workspace's leases.

    A slot is an accelerator, or a share of the CPU on machines without any.
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
        out.table(pool.machines, columns, empty=f"No machines yet. Add one: {out.prog} pool add user@host")
        if leases:
            out.line()
            out.table(leases, lease_columns())

    out.show({**pool.model_dump(), "leases": leases}, human)


@app.command
def devices(
    machine: str | None = None, *, history: Annotated[bool, Parameter(name="--history", negative=())] = False
) -> None:
    """List the GPUs of the machines: model, use, memory, temperature, and what is wrong with them.

    The server reads those of its own machine every 30 seconds, and the agents of
    running jobs report theirs every 5 seconds.

    For example:

      shoal machine devices
      shoal machine devices gpu1 --json
      shoal machine devices gpu1 --history

    Parameters
    ----------
    machine
        Name of a machine (default: all).
    history
        List instead what was known of the GPUs and when: found, broken, drained, gone.
    """
    with connect() as client:
        if history:
            records = client.machines.device_history(machine)
            out.show(records, lambda: out.table(records, _HISTORY, empty="No GPUs were ever known here."))
            return
        found = [m for m in client.machines.capacity().machines if machine in (None, m.name)]
    if machine is not None and not found:
        raise NotFound(f"There is no machine '{machine}'.", hint=f"{out.prog} machine list")
    rows = [{"machine": m.name, **device.model_dump()} for m in found for device in m.devices]
    columns = [
        Column("MACHINE", lambda d: d["machine"]),
        Column("SLOT", lambda d: d["slot"], is_right=True),
        Column("DEVICE", lambda d: d["label"], rank=1),
        Column("MODEL", lambda d: d["model"]),
        Column(
            "MEMORY", lambda d: size(d["memory"]) if d["memory"] else "shared" if d["model"] else None, is_right=True
        ),
        Column("FREE", lambda d: "yes" if d["is_free"] else "no"),
        Column("USE", lambda d: _measured(d["util"], "%"), is_right=True),
        Column(
            "IN USE",
            lambda d: size(int(d["memory_used"])) if d["memory_used"] is not None else "",
            is_right=True,
            rank=1,
        ),
        Column("POWER", lambda d: _measured(d["watts"], "W"), is_right=True, rank=2),
        Column("TEMP", lambda d: _measured(d["celsius"], "°C"), is_right=True, rank=1),
        Column("CLOCK", lambda d: _measured(d["mhz"], "MHz"), is_right=True, rank=3),
        Column("NOTES", _notes, is_text=True, rank=1),
        Column("UUID", lambda d: d["uuid"], rank=3),
        Column("PROBLEM", lambda d: d["problem"], is_text=True),
    ]
    out.show(rows, lambda: out.table(rows, columns, empty="No GPUs are known."))


def _measured(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"


def _notes(device: dict[str, Any]) -> str:
    notes = ["slowed by heat or power"] if device["throttled"] else []
    for key, what in (("ecc_errors", "ECC errors"), ("nvlink_errors", "NVLink errors")):
        if device[key]:
            notes.append(f"{device[key]:.0f} {what}")
    return ", ".join(notes)
