"""Create the client to use, from the arguments, the environment and the data directory, in this order."""

from __future__ import annotations

from collections.abc import Callable

from shoal.client.client import Client
from shoal.client.config import find_target
from shoal.client.local import ensure_local_server, local_key, read_record, running_server
from shoal.core.settings import Layout


def connect(
    *,
    url: str | None = None,
    workspace: str | None = None,
    key: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Client:
    """Return a client. If no server is configured, use the private server of this data directory, and start it if necessary.

    `say` receives lines for the user: about the start of a server, and about waiting for one whose disk does not work.
    """
    client = _connect(url, workspace, key, say)
    if say is not None:
        client._http.on_wait = say
    return client


def _connect(url: str | None, workspace: str | None, key: str | None, say: Callable[[str], None] | None) -> Client:
    layout = Layout()
    target = find_target(layout, url=url, workspace=workspace)
    key = key or target.key
    if target.url is not None:
        return Client(target.url, key or local_key(layout, target.url), target.workspace)
    if key and (record := running_server(layout)):
        where = record.url
    else:
        where, owner = ensure_local_server(layout, say=say)
        key = key or owner

    def locate() -> str | None:
        present = read_record(layout)
        return present.url if present else None

    return Client(where, key, target.workspace, locate=locate)
