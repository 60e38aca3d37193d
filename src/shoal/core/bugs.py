"""Bug capsules on the wire: the data the trainer saves about a failed step so that it can be replayed.

They are not checkpoints.
"""

from __future__ import annotations

from pydantic import Field

from shoal.core.artifacts import Manifest
from shoal.core.schema import Count64, Schema, Utc, View

CAPSULE = r"step-\d{1,18}-rank-\d{1,9}"
"""Pattern of the name of a capsule's folder."""


class BugCommit(Schema):
    """An agent's report of a failed step.

    Reports of a node with the same (rank, n) are the same one, so sending twice is safe.
    """

    rank: Count64
    n: Count64
    """Line number in the rank's spool file."""
    t: float = Field(ge=0, le=1e12)
    step: int = Field(ge=0, le=1 << 53)
    seen: int | None = Field(default=None, ge=0, le=1 << 53)
    """Number of samples trained on before the step."""
    name: str = Field(pattern=f"^{CAPSULE}$")
    error: str = Field(max_length=200)
    """Class name of the exception."""
    message: str = Field(default="", max_length=2000)
    where: str = Field(default="", max_length=500)
    manifest: Manifest | None = None
    """Files of the capsule. None reports the failure at once; a later report with the manifest commits the capsule."""


class BugCommitted(View):
    """The answer to a report of a failed step."""

    missing: list[str] = []
    """Chunks the server does not have yet. While this list is not empty, the capsule is not committed: upload them and commit
    again."""
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
    """True if the capsule is stored and the step can be replayed."""
    size: int
    files: int
