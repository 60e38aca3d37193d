"""Connection of a command to its server, chosen from options, the environment and the data directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.cli.shared.output import out

if TYPE_CHECKING:
    from shoal.client import Client


@dataclass(slots=True)
class Session:
    """Global options of this command."""

    url: str | None = None
    workspace: str | None = None
    after_dashes: int | None = None
    """Number of words after `--`, or None without `--`. They belong to the script and are not parsed."""
    numbers_name: bool = False
    """True if the job's name was not typed but taken from the project: it is numbered if jobs have it already."""

    uses_server: bool = False
    """True once the command has looked for its server, so that an error may be due to a wrong address or key."""


session = Session()


def connect() -> Client:
    """Return a client. Without a configured server, use the private one of this data directory and start it if needed."""
    from shoal.client.connect import connect

    session.uses_server = True
    return connect(url=session.url, workspace=session.workspace, say=out.info)
