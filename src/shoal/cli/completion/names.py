"""Names on the server for completion: at most one short request, and nothing at all if it fails. No server is started."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.client import Client

_MOST_JOBS = 100
_WAIT_S = 2.0
"""A person waits for TAB: a server that takes longer gives no names."""
_NOUNS = {
    "training": "job",
    "dataset": "dataset",
    "checkpoint": "checkpoint",
    "machine": "machine",
    "pool": "machine",
    "sweep": "sweep",
    "swarm": "swarm",
    "secret": "secret",
    "source": "source",
    "workspace": "workspace",
}
_ANYWHERE = {"job": "job", "jobs": "job", "machine": "machine", "machines": "machine", "checkpoint": "checkpoint",
             "lease": "lease", "leases": "lease", "workspace": "workspace"}  # fmt: skip
"""Arguments that mean the same in every command."""
_OF_THE_NOUN = {"name", "names", "a", "b", "first", "second"}
"""Arguments that are a name of what the command's group is about."""
_MAKERS = {"run", "create", "add", "push"}
"""Commands whose name is that of something new."""
KINDS_OF_OPTIONS = {
    "--dataset": "dataset",
    "-D": "dataset",
    "--checkpoint": "checkpoint",
    "-C": "checkpoint",
    "--exclude": "machine",
    "--prefer": "machine",
    "--machine": "machine",
    "--job": "job",
    "--after": "job",
    "--sweep": "sweep",
    "--source-name": "source",
    "--source": "source",
    "--workspace": "workspace",
    "-w": "workspace",
    "--profile": "profile",
}


def kind_of_argument(chain: Sequence[str], argument: str) -> str | None:
    """Return the kind of names that an argument of a command takes, or None."""
    if argument in _ANYWHERE:
        return _ANYWHERE[argument]
    if len(chain) < 2 or chain[1] in _MAKERS or argument not in _OF_THE_NOUN:
        return None
    return _NOUNS.get(chain[0])


def names(kind: str) -> list[tuple[str, str]]:
    """Return the names of one kind with their descriptions; nothing if there is no server or it does not answer."""
    if kind == "profile":
        return _profiles()
    found: list[tuple[str, str]] = []
    reader = threading.Thread(target=_read, args=(kind, found), daemon=True)
    reader.start()
    reader.join(_WAIT_S)
    return list(found)


def _read(kind: str, found: list[tuple[str, str]]) -> None:
    with contextlib.suppress(Exception):  # a person who presses TAB must never see an error
        client = _client()
        found += [] if client is None else _READ[kind](client)


def _client() -> Client | None:
    """Return a client of the server that a command would use, without starting one."""
    from shoal.cli.shared.session import session
    from shoal.client import Client
    from shoal.client.config import find_target
    from shoal.client.local import local_key, running_server

    layout = Layout()
    target = find_target(layout, url=session.url, workspace=session.workspace)
    record = None if target.url else running_server(layout)
    url = target.url or (record.url if record else None)
    return None if url is None else Client(url, target.key or local_key(layout, url), target.workspace)


def _profiles() -> list[tuple[str, str]]:
    from pathlib import Path

    from shoal.cli.shared.project_file import read_project
    from shoal.core.errors import ShoalError
    from shoal.core.project_file import FILE_NAME

    try:
        return [(name, "") for name in read_project(Path(FILE_NAME)).profiles or ()]
    except (OSError, ShoalError):
        return []


_READ: dict[str, Callable[[Client], Iterable[tuple[str, str]]]] = {
    "job": lambda client: ((j.name, j.status.value) for j in client.jobs.list(limit=_MOST_JOBS)),
    "dataset": lambda client: ((d.name, "") for d in client.datasets.list()),
    "checkpoint": lambda client: ((c.name, "") for c in reversed(client.checkpoints.list())),
    "machine": lambda client: (
        (m.name, f"{m.slots_free} of {m.slots_total} slots free") for m in client.machines.capacity().machines
    ),
    "sweep": lambda client: ((s.name, s.status) for s in client.sweeps.list()),
    "swarm": lambda client: ((s.name, s.status) for s in client.swarms.list()),
    "secret": lambda client: ((s.name, "") for s in client.secrets.list()),
    "source": lambda client: ((s.name, "") for s in client.git_sources.list()),
    "lease": lambda client: ((x.name, x.status) for x in client.leases.list()),
    "workspace": lambda client: ((w.name, w.role) for w in client.workspaces.list()),
}
