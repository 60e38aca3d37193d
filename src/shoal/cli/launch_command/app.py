"""`shoal launch-command`: print the commands to run a job manually."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect
from shoal.core.errors import NotFound, UsageError

if TYPE_CHECKING:
    from shoal.cli.launch_command.commands import ByHand, Places
    from shoal.client import Client
    from shoal.core.jobs import JobView

FOLDER = "shoal-launch"


def launch_command(
    job: str,
    /,
    *,
    node: int | None = None,
    address: str = "127.0.0.1",
    port: int = 29500,
    destination: Annotated[Path | None, Parameter(name=("--destination", "-d"))] = None,
    fetch: bool = False,
) -> None:
    """Print the commands to run a job manually: the environment and one command line per node.

    Nothing is started. Values of secrets are not shown: the commands read them
    from your shell's environment and stop with a message if one is missing.

    For example:

      shoal launch-command hello
      shoal launch-command hello --address 10.0.0.4 --fetch
      shoal launch-command hello --address 10.0.0.4 --node 1 --fetch | sh

    Parameters
    ----------
    job
        Name or id of the job.
    node
        Print only the commands of this node.
    address
        Address of the machine of node 0 for the other machines (default: all nodes on one machine).
    port
        A free port on that machine (default 29500).
    destination
        Folder for code, data and output on every machine (default: ./shoal-launch/JOB).
    fetch
        Also download code, datasets and checkpoint to that folder on this machine.
    """
    from shoal.cli.launch_command.commands import Places, Wanted, by_hand

    with connect() as client:
        view = client.jobs.get(job)
        if view.imported:
            raise NotFound(f"Job '{view.name}' was imported from another place; the server does not have its code.")
        if node is not None and not 0 <= node < view.nodes:
            raise UsageError(
                f"Job '{view.name}' has nodes 0 to {view.nodes - 1}.", hint=f"{out.prog} launch-command {job}"
            )
        places = Places((destination or Path(FOLDER) / view.name).absolute())
        datasets = {client.datasets.get(ref).name: ref for ref in view.spec.datasets}
        wanted = Wanted(view, list(datasets), _kind(client, view), address, port)
        if fetch:
            _fetch(client, view, datasets, places)
            nodes = by_hand(wanted, places, places.code)
        else:
            with tempfile.TemporaryDirectory(prefix="shoal-launch-") as look:
                client.bugs.fetch_source(view.id, Path(look) / "code")
                nodes = by_hand(wanted, places, Path(look) / "code")
    chosen = [one for one in nodes if node in (None, one.node)]
    out.show({"nodes": [asdict(one) for one in chosen]}, lambda: _print(view, chosen, places, fetched=fetch))


def _kind(client: Client, job: JobView) -> str:
    """Return the kind of the slots that the job last ran on, or that the pool has; "cuda" if that is not unique."""
    used = {node.machine for node in job.attempt_list[-1].nodes} if job.attempt_list else set()
    kinds = {machine.kind for machine in client.machines.capacity().machines if not used or machine.name in used}
    return kinds.pop() if len(kinds) == 1 else "cuda"


def _fetch(client: Client, job: JobView, datasets: dict[str, str], places: Places) -> None:
    client.bugs.fetch_source(job.id, places.code)
    for name, reference in datasets.items():
        client.datasets.fetch(reference, places.input / name)
    if job.spec.checkpoint:
        client.checkpoints.fetch(job.spec.checkpoint, places.checkpoint)
    out.info(f"Code, datasets and checkpoint are in {places.root}.")


def _print(job: JobView, nodes: list[ByHand], places: Places, *, fetched: bool) -> None:
    if not fetched:
        out.info(
            f"The commands expect the code in {places.code}. To download it: {out.prog} launch-command {job.name} --fetch"
        )
    for one in nodes:
        out.line(f"# node {one.node} of {job.nodes}")
        for line in one.lines():
            out.line(line)
        if one is not nodes[-1]:
            out.line()
