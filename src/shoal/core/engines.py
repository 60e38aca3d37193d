"""Engines that an admin adds to a server, of any installed kind."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View

DEFAULT_KIND = "slurm"
"""Kind of an engine in requests of 0.1, which knew only this one and named the field of its options after it."""


class EngineAdd(Schema):
    """An engine to add to the server."""

    name: str = ""
    """Name of the engine; if empty, that of its kind."""
    kind: str = Field(default=DEFAULT_KIND, max_length=100)
    """Kind of the engine; the server's package list decides which there are."""
    options: dict[str, Any] = Field(default={}, max_length=100)
    """Options of that kind, such as [SlurmOptions](#slurmoptions)."""
    slurm: dict[str, Any] | None = None
    """Name of `options` in 0.1; still read."""

    @model_validator(mode="after")
    def _complete(self) -> EngineAdd:
        if self.slurm is not None:
            if self.kind != DEFAULT_KIND or self.options:
                raise ValueError(f"'{DEFAULT_KIND}' cannot be combined with 'options'")
            self.options, self.slurm = self.slurm, None
        self.name = self.name or self.kind
        check_name(self.name, "engine name")
        return self


class EngineView(View):
    """An engine and its present state."""

    name: str
    kind: str
    options: dict[str, Any] = {}
    """Options of that kind."""
    slurm: dict[str, Any] | None = None
    """The same for an engine of this kind, as 0.1 named them."""
    created_at: Utc
    machines: int
    slots: int
    """Slots of the machines that are up."""
    problems: list[str] = []
