"""`shoal engine`: clusters that have a queue of their own."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from shoal.cli._format import clean, plural
from shoal.cli._output import Column, out
from shoal.cli._session import connect

if TYPE_CHECKING:
    from shoal.core.engines import EngineView

app = App(name="engine")


@app.command
def add(
    kind: Literal["slurm"],
    /,
    *,
    name: str = "slurm",
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    extra_args: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    login: str | None = None,
    key: str | None = None,
    home: str | None = None,
    python: str | None = None,
    server_url: str | None = None,
    cpus_per_slot: int | None = None,
    gpus: Literal["cuda", "rocm", "xpu"] | None = None,
) -> None:
    """Use a Slurm cluster from now on: jobs run on its nodes too, when its own queue lets them.

    It is tried out first, and nothing is kept of one that cannot work. Nodes of
    the cluster show up in `shoal machine list`. Admins only.

    For example:

      shoal engine add slurm
      shoal engine add slurm --partition gpu --account vision \\
          --extra-args "--time=8:00:00 --mem-per-cpu=4G"
      shoal engine add slurm --name hpc --login ada@login.example.org \\
          --home /shared/ada/shoal --python /shared/ada/venv/bin/python

    Parameters
    ----------
    kind
        What it is: slurm.
    name
        What to call it (default: slurm). Its machines are called NAME:NODE.
    partition
        Partition to submit to (default: the cluster's own default).
    account
        Account to submit with.
    qos
        Quality of service to ask for.
    extra_args
        More options for sbatch, in one string.
    login
        USER@HOST of a login node to run Slurm's programs on, where this server's machine has none.
    key
        Private key to sign in there with, on the server's machine (default: what SSH finds by itself).
    home
        Directory for Shoal on the cluster's shared file system (default: one in the server's data directory).
    python
        Interpreter with Shoal, as compute nodes see it (default: the server's own).
    server_url
        This server, as compute nodes see it (default: found by the way that leads to them).
    cpus_per_slot
        CPUs that make a slot on nodes without GPUs (default 2).
    gpus
        What its GPUs are: cuda, rocm or xpu (default cuda).
    """
    from shoal.core.engines import EngineAdd, SlurmOptions

    given: dict[str, Any] = {
        "partition": partition,
        "account": account,
        "qos": qos,
        "extra_args": shlex.split(extra_args) if extra_args else None,
        "login": login,
        "key": key,
        "home": home,
        "python": python,
        "url": server_url,
        "cpus_per_slot": cpus_per_slot,
        "gpus": gpus,
    }
    options = SlurmOptions.model_validate({k: v for k, v in given.items() if v is not None})
    wanted = EngineAdd(name=name, kind=kind, slurm=options)
    with connect() as client:
        engine = client.engines.add(wanted)
    out.show(engine, lambda: out.say(f"Engine '{engine.name}' added: {_offers(engine)}. See {out.prog} machine list"))


@app.command(name="list")
def list_engines() -> None:
    """List the engines that were added. Admins only.

    For example:

      shoal engine list
      shoal engine list --json
    """
    with connect() as client:
        engines = client.engines.list()
    columns = [
        Column("NAME", lambda e: e.name),
        Column("KIND", lambda e: e.kind, rank=3),
        Column("MACHINES", lambda e: e.machines, is_right=True, rank=2),
        Column("SLOTS", lambda e: e.slots, is_right=True, rank=1),
        Column("PARTITION", lambda e: e.slurm.partition, rank=2),
        Column("LOGIN", lambda e: e.slurm.login, rank=4),
        Column("ADDED", lambda e: e.created_at, rank=5),
        Column("PROBLEMS", lambda e: "; ".join(e.problems), is_text=True, rank=1),
    ]
    out.show(engines, lambda: out.table(engines, columns, empty=f"None yet. Add one: {out.prog} engine add slurm"))


@app.command
def check(name: str, /) -> int:
    """Look for problems of an engine now; exit 1 if there are any. Admins only.

    For example:

      shoal engine check slurm

    Parameters
    ----------
    name
        The engine's name.
    """
    with connect() as client:
        engine = client.engines.check(name)

    def show() -> None:
        for problem in engine.problems:
            out.line(clean(problem))
        if not engine.problems:
            out.say(f"Engine '{engine.name}' is well: {_offers(engine)}.")

    out.show(engine, show)
    return 1 if engine.problems else 0


@app.command
def remove(name: str, /) -> None:
    """Use an engine no more. Refused while jobs run or wait on it; nothing is deleted there. Admins only.

    For example:

      shoal engine remove slurm

    Parameters
    ----------
    name
        The engine's name.
    """
    with connect() as client:
        client.engines.remove(name)
    out.show({"removed": name}, lambda: out.say(f"Engine '{name}' removed."))


def _offers(engine: EngineView) -> str:
    return f"{plural(engine.machines, 'machine')} with {plural(engine.slots, 'slot')}"
