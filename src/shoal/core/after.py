"""Jobs that start after others: which jobs they wait for, and how those must end."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from shoal.core.names import check_name
from shoal.core.schema import Schema

When = Literal["succeeded", "ended"]
WHEN: tuple[When, ...] = ("succeeded", "ended")


class After(Schema):
    """A job to wait for. A request may also give it as text: `NAME`, `NAME:succeeded` or `NAME:ended`."""

    job: str
    """Name of the job; a request may give its id."""
    when: When = "succeeded"
    """End of that job that is waited for: succeeded, or ended in any way."""
    id: str = ""
    """Id of the job, set by the server."""

    def __str__(self) -> str:
        return self.job if self.when == "succeeded" else f"{self.job}:{self.when}"

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        job, _, when = value.partition(":")
        if when not in ("", *WHEN):
            raise ValueError(f"--after {value}: give NAME, NAME:succeeded or NAME:ended")
        return {"job": check_name(job, "job name"), "when": when or "succeeded"}
