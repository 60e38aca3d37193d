"""`shoal pool`: machines that train together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from shoal.cli._each import demand, each
from shoal.cli._output import Column, out
from shoal.cli._parse import parse_duration
from shoal.cli._pool_add import add_all, tell_problem
from shoal.cli._session import connect
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
    port: int | None = None,
    key: str | None = None,
    python: str | None = None,
    servers_file: Path | None = None,
) -> int:
    """Bring machines into the pool by SSH.

    The server reaches them as its own user would: a key must open them. It looks
    at each machine, sets up a runtime there, and connects it. Adding a machine
    again repairs it, or brings it to the server's version.

    For example:

      shoal pool add root@10.0.0.5
      shoal pool add ada@gpu1 ada@gpu2 --gpus 0,1,2,3
      shoal pool add --servers-file servers.txt --key ~/.ssh/cluster

    Parameters
    ----------
    targets
        HOST or USER@HOST of each.
    name
        What to call it (default: its host).
    gpus
        Which of its GPUs to use (default: all).
    slots
        How many slots it offers, if it has no GPUs (default: half its cores).
    port
        Of its SSH server.
    key
        A private key on the server's machine.
    python
        An interpreter there that has Shoal and Ray already; by default one is set up.
    servers_file
        A file with a line HOST or HOST:0,1,2 (its GPUs) per machine.
    """
    from shoal.core.pool import PoolAdd, parse_gpus, parse_servers, parse_target

    found = [(target, parse_gpus(gpus) if gpus else None) for target in targets]
    if servers_file is not None:
        lines = parse_servers(servers_file.read_text())
        found += [(host, own if own is not None else parse_gpus(gpus) if gpus else None) for host, own in lines]
    if not found:
        raise UsageError("Say which machines.", hint=f"{out.prog} pool add user@host")
    if name is not None and len(found) > 1:
        raise UsageError("--name is for one machine.")
    if key is not None and not key.startswith("~"):
        key = str(Path(key).absolute())
    asked = []
    for target, chosen in found:
        user, host = parse_target(target)
        asked.append(
            PoolAdd(host=host, user=user, port=port, name=name, gpus=chosen, slots=slots, key=key, python=python)
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
    """Look at machines again, and measure how fast they reach each other; exits with 4 if one has a problem.

    Latency and bandwidth are those of an all-reduce between each two of them,
    as training would see them. The slow one is named.

    For example:

      shoal pool check
      shoal pool check gpu1 gpu2
      shoal pool check --no-speed

    Parameters
    ----------
    machines
        Which (default: all).
    speed
        Measure how they reach each other (default: yes; --no-speed leaves it away).
    """
    with connect() as client:
        out.stick("Looking at the machines …")
        found = client.pool.check(machines, speed=speed)
        out.stick("")
    out.show(found, lambda: _tell_check(found))
    return Refused.exit_code if any(p.is_fatal for m in found.machines for p in m.problems) else 0


@app.command
def drain(*machines: str) -> int:
    """Start nothing new on machines; what runs there goes on.

    `local` is the server's own machine.

    For example:

      shoal pool drain gpu1
      shoal pool drain local
    """
    return _change(machines, draining=True, word="drains: nothing new starts there")


@app.command
def undrain(*machines: str) -> int:
    """Use drained machines again.

    For example:

      shoal pool undrain gpu1
    """
    return _change(machines, draining=False, word="is used again")


@app.command
def remove(*machines: str, force: bool = False) -> int:
    """Take machines out of the pool; what Shoal runs there ends.

    For example:

      shoal pool remove gpu1
      shoal pool remove gpu1 --force

    Parameters
    ----------
    machines
        Which.
    force
        Also with jobs on it, or when it cannot be reached.
    """
    demand(machines, "machine")
    with connect() as client:

        def act(name: str) -> dict[str, str]:
            client.pool.remove(name, force=force)
            out.say(f"'{name}' has left the pool.")
            return {"removed": name}

        return each(machines, act)


@app.command
def join_command(
    *,
    name: str | None = None,
    gpus: str | None = None,
    slots: int | None = None,
    address: str | None = None,
    expires: str = "1h",
) -> None:
    """Print a line to paste on a machine that the server cannot reach by SSH. It works once.

    The machine must reach this server, and the machines of the pool each other.

    For example:

      shoal pool join-command
      shoal pool join-command --name gpu7 --gpus 0,1 --expires 1d

    Parameters
    ----------
    name
        What to call it (default: its hostname).
    gpus
        Which of its GPUs to use (default: all).
    slots
        How many slots it offers, if it has no GPUs (default: half its cores).
    address
        Of this server, as the machine sees it (default: as other machines do).
    expires
        How long the line is good for (default 1h).
    """
    from shoal.core.pool import JoinAsk, parse_gpus

    ask = JoinAsk(name=name, gpus=parse_gpus(gpus) if gpus else None, slots=slots, address=address,
                  expires_in_s=int(parse_duration(expires, "--expires")))  # fmt: skip
    with connect() as client:
        made = client.pool.join_command(ask)

    def show() -> None:
        out.line(made.command)
        out.say("Paste it on the machine, as the user jobs shall run as. Whoever has it can join until it is used.")

    out.show(made, show)


def _change(machines: tuple[str, ...], *, draining: bool, word: str) -> int:
    demand(machines, "machine")
    with connect() as client:

        def act(name: str) -> PoolMachine:
            machine = client.pool.drain(name, draining=draining)
            out.say(f"'{machine.name}' {word}.")
            return machine

        return each(machines, act)


def _tell_check(found: PoolCheck) -> None:
    for machine in found.machines:
        problems = machine.problems
        for problem in problems:
            tell_problem(problem, lead=f"{machine.name}: ")
        if not problems:
            out.say(f"{machine.name}: all is well")
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
