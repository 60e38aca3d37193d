"""Parsers of option values. Invalid values raise a UsageError that shows the expected form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from shoal.core.durations import parse_duration
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.core.device_requirements import DeviceRequirements

__all__ = [
    "DeviceName",
    "device_requirements",
    "device_words",
    "parse_duration",
    "parse_labels",
    "parse_nodes",
    "parse_pairs",
    "parse_seconds",
    "parse_since",
]

DeviceName = Literal["auto", "any", "gpu", "cpu", "cuda", "rocm", "xpu"]
"""Copy of `core.jobs.Device`, whose module takes too long to import for a command line."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_since(text: str, now: datetime | None = None, *, option: str = "--since") -> datetime:
    """Parse `5m` (that long ago) or a time like `2025-01-31T12:00:00` (local time unless it has a time zone)."""
    if re.match(r"\d{4}-", text):
        try:
            return datetime.fromisoformat(text).astimezone(UTC)
        except ValueError:
            pass
    else:
        try:
            return (now or datetime.now(UTC)) - timedelta(seconds=parse_duration(text, option))
        except UsageError:
            pass
    raise UsageError(
        f"{option} {text!r} is neither a duration nor a date.",
        hint=f"For example: {option} 5m, or {option} 2025-01-31T12:00:00Z",
    )


def parse_nodes(text: str) -> tuple[int, int]:
    """Parse `4`, or `1:4` for one to four nodes; return (smallest, largest)."""
    low, colon, high = text.strip().partition(":")
    try:
        smallest = int(low)
        largest = int(high) if colon else smallest
    except ValueError:
        raise UsageError(
            f"--nodes {text!r} is not a number of nodes.", hint="For example: --nodes 2, or --nodes 1:4"
        ) from None
    if smallest < 1:
        raise UsageError(f"--nodes {text!r}: a job needs at least one node.")
    if largest < smallest:
        raise UsageError(
            f"--nodes {text!r}: the minimum is larger than the maximum.", hint=f"--nodes {largest}:{smallest}"
        )
    return smallest, largest


def parse_seconds(text: str | None, option: str) -> int | None:
    """Parse a duration into whole seconds, at least 1; return None if it was not given."""
    return max(1, round(parse_duration(text, option))) if text else None


def parse_pairs(items: Sequence[str] | None, option: str, shape: str) -> dict[str, str]:
    """Parse `NAME=VALUE` options. The value may contain any character, including '='."""
    pairs: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        # The value may be a secret typed in the wrong place, so errors repeat only the name.
        if not equals:
            raise UsageError(f"{option} {name!r} has no '='.", hint=f"Write it as: {option} {shape}")
        if not _ENV_NAME.fullmatch(name):
            raise UsageError(f"{option}: {name!r} is not an environment variable name.", hint=f"{option} {shape}")
        if name in pairs:
            raise UsageError(f"{option} {name} is given twice.")
        pairs[name] = value
    return pairs


def device_requirements(
    accels: int | None, device: str, gpu: str | None, gpu_memory: str | None, labels: Sequence[str] | None
) -> dict[str, Any]:
    """Return the fields of a request that say which slots it needs. `--gpu H100:8` also sets the slots per node."""
    from shoal.core.gpu_models import parse_gpu, parse_memory

    model, count = parse_gpu(gpu) if gpu else (None, None)
    if count is not None and accels not in (None, 1, count):
        raise UsageError(f"--gpu {gpu} and --accels {accels} contradict each other.", hint=f"--gpu {gpu}")
    if device == "cpu" and (gpu or gpu_memory):
        raise UsageError(f"--device cpu cannot be combined with --gpu{'' if gpu else '-memory'}.")
    return {
        "accels": count or (1 if accels is None else accels),
        "device": device,
        "gpu": model,
        "gpu_memory_gb": parse_memory(gpu_memory) if gpu_memory else None,
        "labels": parse_labels(labels),
    }


def parse_labels(labels: Sequence[str] | None) -> dict[str, str]:
    """Parse the values of `--label KEY=VALUE`."""
    pairs = {}
    for item in labels or ():
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--label {item!r} has no '='.", hint="Write it as: --label KEY=VALUE")
        pairs[key] = value
    return pairs


def device_words(spec: DeviceRequirements) -> str:
    """Return the devices and labels of a request in words, each after a comma; empty if it names none."""
    device = getattr(spec, "device", "auto")
    words = [] if device == "auto" else [f"device {device}"]
    words += [f"GPU {spec.gpu}"] if spec.gpu else []
    words += [f"{spec.gpu_memory_gb:g} GB or more per GPU"] if spec.gpu_memory_gb else []
    words += ["models may differ"] if getattr(spec, "mixed_models", False) else []
    words += [f"{key}={value}" for key, value in spec.labels.items()]
    return "".join(f", {word}" for word in words)
