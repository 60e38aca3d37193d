"""Results of a search over everything that a person may see."""

from __future__ import annotations

from typing import Literal

from shoal.core.schema import Utc, View

FoundKind = Literal["job", "sweep", "swarm", "dataset", "checkpoint"]


class Found(View):
    """Thing whose name, title or tag contains the text."""

    kind: FoundKind
    id: str
    name: str
    title: str = ""
    """Display name of a job."""
    status: str = ""
    workspace: str
    path: str
    """Page of the console."""
    created_at: Utc
