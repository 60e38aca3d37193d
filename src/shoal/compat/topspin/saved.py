"""Model files of TopSpin: `model/model_<samples>.pt`, and their list in `model/checkpoint`, the newest last."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core.errors import UsageError

torch: Any = import_module("torch")


def load(file: str, device: Any = "cpu") -> dict[str, Any]:
    """Return the content of a model file: the weights under `model`, and everything saved with them."""
    if not Path(file).is_file():
        raise UsageError(
            f"there is no model file {file}", hint="model files are in the folder model of a run's path_work"
        )
    try:
        with torch.serialization.safe_globals(_harmless()):
            info = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:
        raise UsageError(f"{file} cannot be loaded: {error}") from error
    if isinstance(info, list) and len(info) > 3:  # format of version 3
        info = {"model": info[3]}
    if not isinstance(info, dict) or not isinstance(info.get("model"), dict):
        raise UsageError(
            f"{file} is not a model file of TopSpin", hint='it must contain a dict with the weights under "model"'
        )
    info["model"] = _plain(info["model"])
    return info


def newest(path_model: str) -> str | None:
    """Return the last file of the list that exists, or None."""
    listed = Path(path_model) / "checkpoint"
    names = listed.read_text().split() if listed.is_file() else []
    return next((str(listed.parent / n) for n in reversed(names) if (listed.parent / n).is_file()), None)


def save(
    path_model: str, info: dict[str, Any], *, keep: int, keep_also: str | None = None, tag: str = ""
) -> str | None:
    """Write a model file and return its name; delete all except the newest `keep` files and `keep_also`."""
    if keep <= 0:
        return None
    folder = Path(path_model)
    name = f"model_{info['model_seen_sample_num']:015}{f'.{tag}' if tag else ''}.pt"
    partial = folder / f".{name}.tmp"
    torch.save(info, partial)
    partial.replace(folder / name)
    listed = folder / "checkpoint"
    names = [n for n in (listed.read_text().split() if listed.is_file() else []) if n != name] + [name]
    kept = [n for n in names[:-keep] if n == keep_also] + names[-keep:]
    aside = folder / ".checkpoint.tmp"
    aside.write_text("".join(f"{n}\n" for n in kept))
    os.replace(aside, listed)  # noqa: PTH105
    for old in set(names) - set(kept):
        (folder / old).unlink(missing_ok=True)
    return name


def _plain(weights: dict[str, Any]) -> dict[str, Any]:
    """Return weights without the prefix of DistributedDataParallel, which version 4 saved."""
    if weights and all(name.startswith("module.") for name in weights):
        return {name.removeprefix("module."): value for name, value in weights.items()}
    return weights


def _harmless() -> list[Any]:
    """Return the safe types in TopSpin's files besides tensors: defaultdict for figures, numpy numbers for errors."""
    numpy: Any = import_module("numpy")
    scalar = import_module("numpy._core.multiarray").scalar
    floats = [type(numpy.dtype(name)) for name in ("float64", "float32")]
    # torch's safe loader fills plain dicts only.
    return [
        list,
        numpy.dtype,
        *floats,
        scalar,
        (scalar, "numpy.core.multiarray.scalar"),
        (_dict, "collections.defaultdict"),
    ]


def _dict(*_: Any) -> dict[Any, Any]:
    return {}
