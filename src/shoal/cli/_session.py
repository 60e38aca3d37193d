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


session = Session()


def connect() -> Client:
    """The client to use; without a configured server, this data directory's private one, started if need be."""
    from shoal.client import Client
    from shoal.client.config import find_target
    from shoal.client.local import ensure_local_server, owner_key, read_record, running_server

    layout = Layout()
    target = find_target(layout, url=session.url, workspace=session.workspace)
    if target.url is None:
        url, owner = ensure_local_server(layout, say=out.say)

        def locate() -> str | None:
            record = read_record(layout)
            return record.url if record else None

        return Client(url, target.key or owner, target.workspace, locate=locate)
    key = target.key
    if key is None and (record := running_server(layout)) and record.url.rstrip("/") == target.url:
        key = owner_key(layout)
    return Client(target.url, key, target.workspace)
