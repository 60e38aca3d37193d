"""`shoal pool`: add, check, drain and remove machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from shoal.cli.pool.add import add_all, print_problem
from shoal.cli.shared.bulk import demand, each
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_duration, parse_labels
from shoal.cli.shared.session import connect
from shoal.core.errors import Refused, UsageError

if TYPE_CHECKING:
    from shoal.core.pool import PoolCheck, PoolMachine

app = App(name="pool")


@app.command
def add(
    *targets: str,
    name: str | None = None,
    gpus: str | None = None,
    slots: int | None = None,
    label: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None,
    port: int | None = None,
    key: str | None = None,
    python: str | None = None,
    servers_file: Path | None = None,
) -> int:
    """Add machines to the pool by SSH.

    The server connects with the SSH configuration of its own user and needs a
    key. It checks each machine, installs a runtime there and connects it. Add
    a machine again to repair it or to update it to the server's version.

    For example:

      shoal pool add root@10.0.0.5
      shoal pool add ada@gpu1 ada@gpu2 --gpus 0,1,2,3
      shoal pool add --servers-file servers.txt --key ~/.ssh/cluster

    Parameters
    ----------
    targets
        HOST or USER@HOST of each machine.
    name
        Name of the machine (default: its host).
    gpus
        GPUs to use, as 0,1,2 or by UUID; none: only the CPU (default: all).
    slots
        Number of slots of a machine without GPUs (default: half its cores).
    label
        Label of the machine, as KEY=VALUE (repeatable). Jobs ask for it with --label.
    port
        Port of its SSH server (default: SSH's own default).
    key
        Path of a private key on the server's machine.
    python
        Path of a Python on the machine that already has Shoal and Ray (default: a runtime is installed).
    servers_file
        File with one line per machine: HOST, or HOST:0,1,2 with the GPUs to use.
    """
    from shoal.core.pool import PoolAdd, parse_gpus, parse_servers, parse_target

    found = [(target, parse_gpus(gpus) if gpus else None) for target in targets]
    if servers_file is not None:
        lines = parse_servers(servers_file.read_text())
        found += [(host, own if own is not None else parse_gpus(gpus) if gpus else None) for host, own in lines]
    if not found:
        raise UsageError("Name at least one machine.", hint=f"{out.prog} pool add user@host")
    if name is not None and len(found) > 1:
        raise UsageError("--name works with one machine only.")
    if key is not None and not key.startswith("~"):
        key = str(Path(key).absolute())
    asked = []
    for target, chosen in found:
        user, host = parse_target(target)
        asked.append(
            PoolAdd(
                host=host,
                user=user,
                port=port,
                name=name,
                gpus=chosen,
                slots=slots,
                key=key,
                python=python,
                labels=parse_labels(label),
            )
        )
    with connect() as client:
        return add_all(client, asked)


@app.command(name="list")
def list_machines() -> None:
    """List the machines of the pool.

    For example:

      shoal pool list
      shoal pool list --json
    """
    with connect() as client:
        machines = client.pool.list()
    columns = [
        Column("NAME", lambda m: m.name),
        Column("STATE", lambda m: m.state, is_status=True),
        Column("KIND", lambda m: m.kind, rank=2),
        Column("SLOTS", lambda m: m.slots, is_right=True),
        Column("FREE", lambda m: m.slots_free, is_right=True),
        Column("ADDRESS", lambda m: m.address or m.host, rank=3),
        Column("PROBLEMS", lambda m: "; ".join(p.text for p in m.problems), is_text=True),
    ]
    empty = f"Only the server's own machine. Add one: {out.prog} pool add user@host"
    out.show(machines, lambda: out.table(machines, columns, empty=empty))


@app.command
def check(*machines: str, speed: Annotated[bool, Parameter(negative="--no-speed")] = True) -> int:
    """Check machines and measure the network between them; exit 4 if a machine has a problem.

    Latency and bandwidth are measured with an all-reduce between each pair of
    machines, as in training. Slow machines are named.

    For example:

      shoal pool check
      shoal pool check gpu1 gpu2
      shoal pool check --no-speed

    Parameters
    ----------
    machines
        Machines to check (default: all).
    speed
        Measure the network between machines (default); --no-speed skips it.
    """
    with connect() as client:
        out.stick("Checking the machines …")
        found = client.pool.check(machines, speed=speed)
        out.stick("")
    out.show(found, lambda: _print_check(found))
    return Refused.exit_code if any(p.is_fatal for m in found.machines for p in m.problems) else 0


@app.command
def drain(
    *machines: str, device: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None
) -> int:
    """Start no new jobs on machines, or on some of their devices; running jobs continue.

    `local` is the server's own machine.

    For example:

      shoal pool drain gpu1
      shoal pool drain local
      shoal pool drain gpu1 --device 3

    Parameters
    ----------
    device
        Drain only this device: its UUID or slot, see `shoal machine devices` (repeatable).
    """
    return _change(machines, draining=True, word="is drained: no new jobs start there", devices=device)


@app.command
def undrain(
    *machines: str, device: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None
) -> int:
    """Use drained machines or devices again.

    For example:

      shoal pool undrain gpu1
      shoal pool undrain gpu1 --device 3

    Parameters
    ----------
    device
        Use only this device again: its UUID or slot (repeatable).
    """
    return _change(machines, draining=False, word="is used again", devices=device)


@app.command
def remove(*machines: str, force: bool = False) -> int:
    """Remove machines from the pool and stop Shoal's processes there.

    For example:

      shoal pool remove gpu1
      shoal pool remove gpu1 --force

    Parameters
    ----------
    machines
        Names of the machines.
    force
        Remove a machine even if jobs run on it or it cannot be reached.
    """
    demand(machines, "machine")
    with connect() as client:

        def act(name: str) -> dict[str, str]:
            client.pool.remove(name, force=force)
            out.info(f"'{name}' was removed from the pool.")
            return {"removed": name}

        return each(machines, act)


@app.command
def join_command(
    *,
    name: str | None = None,
    gpus: str | None = None,
    slots: int | None = None,
    label: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None,
    address: str | None = None,
    expires: str = "1h",
) -> None:
    """Print a command that adds a machine which the server cannot reach by SSH. It works once.

    Run the command on that machine. It must be able to reach this server, and
    the machines of the pool must be able to reach each other.

    For example:

      shoal pool join-command
      shoal pool join-command --name gpu7 --gpus 0,1 --expires 1d

    Parameters
    ----------
    name
        Name of the machine (default: its hostname).
    gpus
        GPUs to use, as 0,1,2 or by UUID; none: only the CPU (default: all).
    slots
        Number of slots of a machine without GPUs (default: half its cores).
    label
        Label of the machine, as KEY=VALUE (repeatable). Jobs ask for it with --label.
    address
        Address of this server for that machine (default: the address for other machines).
    expires
        Lifetime of the command (default 1h).
    """
    from shoal.core.pool import JoinCommandRequest, parse_gpus

    ask = JoinCommandRequest(name=name, gpus=parse_gpus(gpus) if gpus else None, slots=slots, address=address, labels=parse_labels(label),
                  expires_in_s=int(parse_duration(expires, "--expires")))  # fmt: skip
    with connect() as client:
        made = client.pool.join_command(ask)

    def show() -> None:
        out.line(made.command)
        out.info(
            "Run it on the machine, as the user that jobs should run as. Keep it secret: anyone can use it once to join."
        )

    out.show(made, show)


def _change(machines: tuple[str, ...], *, draining: bool, word: str, devices: list[str] | None = None) -> int:
    demand(machines, "machine")
    with connect() as client:

        def act(name: str) -> PoolMachine:
            machine = client.pool.drain(name, draining=draining, devices=devices or [])
            which = f"Device {', '.join(devices)} of " if devices else ""
            out.info(f"{which}'{machine.name}' {word}.")
            return machine

        return each(machines, act)


def _print_check(found: PoolCheck) -> None:
    for machine in found.machines:
        problems = machine.problems
        for problem in problems:
            print_problem(problem, lead=f"{machine.name}: ")
        if not problems:
            out.info(f"{machine.name}: no problems")
    if found.pairs:
        columns = [
            Column("BETWEEN", lambda p: p.one),
            Column("AND", lambda p: p.other),
            Column("LATENCY", lambda p: f"{p.latency_ms:.2f} ms", is_right=True),
            Column("SPEED", lambda p: f"{p.mb_s:.0f} MB/s", is_right=True),
        ]
        out.table(found.pairs, columns)
    for text in found.slow:
        out.warn(text)
    if found.skipped:
        out.dim(f"Speeds were not measured: {found.skipped}.")
