"""The model files of TopSpin: `model/model_<samples>.pt` and the list of them in `model/checkpoint`, the newest last."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core.errors import UsageError

torch: Any = import_module("torch")


def load(file: str, device: Any = "cpu") -> dict[str, Any]:
    """What is in a model file: `model` and whatever was saved with it."""
    if not Path(file).is_file():
        raise UsageError(
            f"there is no model file {file}", hint="model files are in the folder model of a run's path_work"
        )
    try:
        with torch.serialization.safe_globals(_harmless()):
            info = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:
        raise UsageError(f"{file} cannot be loaded: {error}") from error
    if isinstance(info, list) and len(info) > 3:  # of version 3
        info = {"model": info[3]}
    if not isinstance(info, dict) or not isinstance(info.get("model"), dict):
        raise UsageError(
            f"{file} is not a model file of TopSpin", hint='it holds a dict with the weights under "model"'
        )
    info["model"] = _plain(info["model"])
    return info


def newest(path_model: str) -> str | None:
    """The last file of the list that is there."""
    listed = Path(path_model) / "checkpoint"
    names = listed.read_text().split() if listed.is_file() else []
    return next((str(listed.parent / n) for n in reversed(names) if (listed.parent / n).is_file()), None)


def save(
    path_model: str, info: dict[str, Any], *, keep: int, keep_also: str | None = None, tag: str = ""
) -> str | None:
    """A new model file, of so many samples as `info` says; its name. All but the newest `keep` go, except `keep_also`."""
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
    """Version 4 saved them with the names of DistributedDataParallel."""
    if weights and all(name.startswith("module.") for name in weights):
        return {name.removeprefix("module."): value for name, value in weights.items()}
    return weights


def _harmless() -> list[Any]:
    """What TopSpin's own files hold besides tensors: figures in a defaultdict, errors as numpy's numbers."""
    numpy: Any = import_module("numpy")
    scalar = import_module("numpy._core.multiarray").scalar
    floats = [type(numpy.dtype(name)) for name in ("float64", "float32")]
    # torch fills plain dicts only.
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
