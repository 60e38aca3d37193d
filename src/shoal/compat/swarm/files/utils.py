"""Signed metrics that a peer publishes in the DHT, in the format that NetMind's monitor reads."""

from importlib import import_module
from typing import Any

from pydantic.v1 import BaseModel, StrictFloat, confloat, conint

__all__ = ["LocalMetrics", "MetricSchema", "make_validators"]

_crypto: Any = import_module("hivemind.dht.crypto")
_schema: Any = import_module("hivemind.dht.schema")


class LocalMetrics(BaseModel):
    """Metrics of one peer, summed since its last report."""

    step: conint(ge=0, strict=True)  # type: ignore[valid-type]
    samples_per_second: confloat(ge=0.0, strict=True)  # type: ignore[valid-type]
    samples_accumulated: conint(ge=0, strict=True)  # type: ignore[valid-type]
    loss: StrictFloat
    mini_steps: conint(ge=0, strict=True)  # type: ignore[valid-type]


class MetricSchema(BaseModel):
    metrics: dict[_schema.BytesWithPublicKey, LocalMetrics]


def make_validators(run_id: str) -> tuple[list[Any], bytes]:
    """Return the DHT's `record_validators`, and the public key under which this peer's records are stored."""
    signatures = _crypto.RSASignatureValidator()
    return [_schema.SchemaValidator(MetricSchema, prefix=run_id), signatures], signatures.local_public_key
