"""The server a command talks to, from its flags, the environment and the data directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.cli._output import out

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
    from shoal.client.connect import connect

    return connect(url=session.url, workspace=session.workspace, say=out.say)
