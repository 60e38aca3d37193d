"""Names and sizes of GPUs as people write them: `H100`, `H100:8`, `40G`. Pure."""

from __future__ import annotations

import functools
import re

from shoal.core.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .+_-]{0,79}")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:GB?|GiB)?", re.IGNORECASE)
_SLICE = re.compile(r"\bMIG\b|\b\d+g\.\d+gb\b", re.IGNORECASE)
_LEAST_MODEL = 100
"""Smaller numbers are no models of GPUs, but how many a person wants; 3090 is a model."""
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")


def parse_gpu(text: str) -> tuple[str, int | None]:
    """Return model and number of a request such as `H100` or `H100:8`."""
    model, colon, count = text.partition(":")
    if model.isdigit() and int(model) < _LEAST_MODEL:
        raise UsageError(
            f"--gpu {text!r} is a number; --gpu names a model.",
            hint=f"--accels {model} for {model} per node, with --device gpu; or --gpu H100:{model}",
        )
    if not _NAME.fullmatch(model) or (colon and not (count.isdigit() and 1 <= int(count) <= 1024)):
        raise UsageError(f"--gpu {text!r} is not a model of a GPU.", hint="--gpu H100, or --gpu H100:8 for 8 per node")
    return model.strip(), int(count) if colon else None


def parse_memory(text: str) -> float:
    """Return the gigabytes (10⁹ bytes) of a size such as `40G`."""
    found = _SIZE.fullmatch(text.strip())
    if not found or not float(found[1]) > 0:
        raise UsageError(f"--gpu-memory {text!r} is not a size.", hint="--gpu-memory 40G")
    return float(found[1])


def check_model(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a model of a GPU, such as H100")
    return text


def check_labels(value: dict[str, str]) -> dict[str, str]:
    """Return labels whose names and values are plain words; raise ValueError otherwise."""
    for part in [*value, *value.values()]:
        if not _LABEL.fullmatch(part):
            raise ValueError(f"{part!r} cannot be a part of a label; labels look like rack=a1")
    return value


@functools.lru_cache(4096)
def is_model(model: str, wanted: str) -> bool:
    """Return whether a driver's name of a model is what a person means: every word of `wanted` is one of its words.

    "H100" is "NVIDIA H100 80GB HBM3", "A100 80GB" is "NVIDIA A100-SXM4-80GB", and "A10" is not "NVIDIA A100-PCIE-40GB". A MIG
    slice is meant only by its profile or by the word MIG: "A100 1g.10gb", "A100 MIG".
    """
    have, want = _words(model), _words(wanted)
    if is_slice(model) and not is_slice(wanted):
        return False
    return set(want) <= set(have) or "".join(want) in have or _is_run(have, "".join(want))


def is_slice(model: str) -> bool:
    """Return whether a name is that of a MIG slice: a part of a GPU, which cannot work together with others."""
    return _SLICE.search(model) is not None


def short_model(model: str) -> str:
    """Return a model's name without the maker: "H100 80GB HBM3"."""
    return re.sub(r"^(NVIDIA|AMD|Intel(\(R\))?|Advanced Micro Devices)\s+", "", model) or model


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9.]+", text.lower())


def _is_run(have: list[str], joined: str) -> bool:
    """Return whether several words in a row, written as one, are `joined`: "RTX4090" means "GeForce RTX 4090"."""
    return any("".join(have[i:j]) == joined for i in range(len(have)) for j in range(i + 2, len(have) + 1))
