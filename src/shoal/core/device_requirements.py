"""The part of a request that says which accelerators and machines it needs; shared by jobs, leases, quotes and simulations."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from shoal.core.gpu_models import check_labels, check_model
from shoal.core.schema import Schema


class DeviceRequirements(Schema):
    """Requirements on the accelerators and machines of a request."""

    gpu: Annotated[str, AfterValidator(check_model)] | None = None
    """Model of the accelerators, such as H100 or "A100 80GB"; None: any model. All slots of a job are of one model."""
    gpu_memory_gb: float | None = Field(default=None, gt=0, le=100_000, allow_inf_nan=False)
    """Memory that each accelerator must have at least, in gigabytes (10⁹ bytes)."""
    labels: Annotated[dict[str, str], Field(max_length=20), AfterValidator(check_labels)] = {}
    """Labels that the machines must have, such as rack=a1."""

    @model_validator(mode="after")
    def _device_fits(self) -> DeviceRequirements:
        if getattr(self, "device", None) == "cpu" and self.demands_accelerator:
            raise ValueError("--device cpu cannot be combined with --gpu or --gpu-memory")
        return self

    @property
    def demands_accelerator(self) -> bool:
        return self.gpu is not None or self.gpu_memory_gb is not None


def check_machines(exclude: list[str], prefer: list[str]) -> None:
    """Raise ValueError if a machine is both excluded and preferred."""
    if both := sorted(set(exclude) & set(prefer)):
        raise ValueError(f"machine '{both[0]}' is given by both --exclude and --prefer")
