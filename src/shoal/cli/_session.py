"""The server a command talks to, from its flags, the environment and the data directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.cli._output import out
from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.client import Client


@dataclass(slots=True)
class Session:
    """The global flags of this run."""

    url: str | None = None
    workspace: str | None = None
    after_dashes: int | None = None
    """How many words follow `--`, if there is one: what they mean is not ours."""


session = Session()


def connect() -> Client:
    """The client to use; without a configured server, this data directory's private one, started if need be."""
    from shoal.client import Client
    from shoal.client.config import find_target
    from shoal.client.local import ensure_local_server, read_record, running_server

    layout = Layout()
    target = find_target(layout, url=session.url, workspace=session.workspace)
    if target.url is not None:
        return Client(target.url, target.key or local_key(layout, target.url), target.workspace)
    if target.key and (record := running_server(layout)):
        url, key = record.url, target.key
    else:
        url, owner = ensure_local_server(layout, say=out.say)
        key = target.key or owner

    def locate() -> str | None:
        present = read_record(layout)
        return present.url if present else None

    return Client(url, key, target.workspace, locate=locate)


def local_key(layout: Layout, url: str) -> str | None:
    """The owner's key, if the URL is that of this data directory's private server."""
    from shoal.client.local import owner_key, running_server

    record = running_server(layout)
    return owner_key(layout, record) if record and record.private and record.url.rstrip("/") == url else None
