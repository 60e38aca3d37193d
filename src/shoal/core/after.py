"""Jobs that start after others: which jobs they wait for, and how those must end."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from shoal.core.errors import UsageError
from shoal.core.names import check_name
from shoal.core.schema import Schema

When = Literal["succeeded", "ended"]
WHEN: tuple[When, ...] = ("succeeded", "ended")


class After(Schema):
    """A job to wait for. A request may also give it as text: `JOB`, `JOB:ended`, or `NAME=JOB` for another name below /input."""

    job: str
    """Name of the job; a request may give its id."""
    when: When = "succeeded"
    """End of that job that is waited for: succeeded, or ended in any way."""
    at: str = ""
    """Name below /input of its newest checkpoint; the server sets the job's name if none is given."""
    id: str = ""
    """Id of the job, set by the server."""

    def __str__(self) -> str:
        name = f"{self.at}={self.job}" if self.at not in ("", self.job) else self.job
        return name if self.when == "succeeded" else f"{name}:{self.when}"

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return cls._fields(value) if isinstance(value, str) else value

    @classmethod
    def parse(cls, text: str) -> After:
        """Return what a text means; raise ValueError if it means nothing."""
        return cls(**cls._fields(text))

    @staticmethod
    def _fields(text: str) -> dict[str, Any]:
        name, _, when = text.partition(":")
        at, _, job = name.rpartition("=")
        if when not in ("", *WHEN):
            raise ValueError(f"{text!r} should be JOB, JOB:succeeded or JOB:ended")
        try:
            return {
                "job": check_name(job, "job name"),
                "when": when or "succeeded",
                "at": at and check_name(at, "name"),
            }
        except UsageError as error:
            raise ValueError(error.message) from None
