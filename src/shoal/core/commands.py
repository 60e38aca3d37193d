"""Commands that the server gives the agent of a node, in its answers to heartbeats.

On the wire a command is `{"id": …, "do": "stacks"}`, with `"why"` where the job's owner is told the reason. The server repeats
it until the agent has answered; an agent carries out each id once and ignores commands it does not know.
"""

from __future__ import annotations

from enum import StrEnum


class Command(StrEnum):
    """Name of a command."""

    STACKS = "stacks"
    """Send the stacks of all threads of all workers."""
    SAVE = "save"
    """Have the SDK write a checkpoint at the next step."""
    ATTACH = "attach"
    """Open a connection through which a person gets a shell in the node's sandbox."""
    SNAPSHOT = "snapshot"
    """Save the volume of a lease. Only for the agent of a lease."""
