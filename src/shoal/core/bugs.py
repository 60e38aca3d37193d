"""Bug capsules on the wire: what the trainer keeps of a step that failed, so that it can be replayed. Never checkpoints."""

from __future__ import annotations

from pydantic import Field

from shoal.core.artifacts import Manifest
from shoal.core.schema import Count64, Schema, Utc, View

CAPSULE = r"step-\d{1,18}-rank-\d{1,9}"
"""What a capsule's folder is called."""


class BugCommit(Schema):
    """An agent's word of a capsule. Equal (rank, n) of one node are the same one, however often it is sent."""

    rank: Count64
    n: Count64
    """Line of the rank's spool file."""
    t: float = Field(ge=0, le=1e12)
    step: int = Field(ge=0, le=1 << 53)
    seen: int | None = Field(default=None, ge=0, le=1 << 53)
    """Samples trained on before it."""
    name: str = Field(pattern=f"^{CAPSULE}$")
    error: str = Field(max_length=200)
    """The exception's class."""
    message: str = Field(default="", max_length=2000)
    where: str = Field(default="", max_length=500)
    manifest: Manifest | None = None
    """None tells of the failure at once; with it, the capsule itself is committed."""


class BugCommitted(View):
    missing: list[str] = []
    """Not committed while this is non-empty: upload these chunks and commit again."""
    id: str | None = None


class BugView(View):
    """A step that failed."""

    id: str
    name: str
    attempt: int
    node: int
    rank: int
    step: int
    seen: int | None
    at: Utc
    error: str
    message: str
    where: str
    """File, line and function of the user's code."""
    ready: bool
    """Whether its capsule is here, to be replayed."""
    size: int
    files: int
