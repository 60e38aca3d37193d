"""Names that people type out of habit from other programs, and the commands they stand for.

An alias is replaced only where Shoal has no command of that name, so no command can be hidden by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App

TOP = {
    "ps": ("training", "list"),
    "jobs": ("training", "list"),
    "ls": ("training", "list"),
    "logs": ("training", "logs"),
    "stop": ("training", "stop"),
    "cancel": ("training", "stop"),
    "kill": ("training", "stop"),
    "rm": ("training", "delete"),
    "submit": ("training", "run"),
    "machines": ("machine", "list"),
    "datasets": ("dataset", "list"),
}
"""First word of a command line → the command it stands for."""

VERBS = {
    "ls": ("list",),
    "ps": ("list",),
    "rm": ("delete", "remove"),
    "remove": ("delete",),
    "delete": ("remove",),
    "cancel": ("stop",),
    "kill": ("stop",),
    "show": ("inspect",),
    "describe": ("inspect",),
    "status": ("inspect",),
    "submit": ("run",),
    "pull": ("fetch",),
    "download": ("fetch",),
    "upload": ("push",),
    "new": ("create", "add"),
}
"""Second word of a command line → commands of the same noun, of which the first that exists is meant."""


def expand(app: App, tokens: Sequence[str]) -> tuple[str, ...]:
    """Return the command line with an alias in its first or second word replaced by the command it stands for."""
    if not tokens or tokens[0].startswith("-"):
        return tuple(tokens)
    if tokens[0] not in app:
        return (*TOP.get(tokens[0], tokens[:1]), *tokens[1:])
    if len(tokens) > 1 and tokens[1] in VERBS and tokens[1] not in (noun := app[tokens[0]]):
        meant = next((verb for verb in VERBS[tokens[1]] if verb in noun), tokens[1])
        return (tokens[0], meant, *tokens[2:])
    return tuple(tokens)
