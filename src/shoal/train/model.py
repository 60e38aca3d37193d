"""A module that is made from parameters, and the same one again from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core.errors import NotFound, UsageError
from shoal.sdk.saving import layout
from shoal.sdk.saving.rng import seed_everything
from shoal.train.params import Params

torch: Any = import_module("torch")


class Model(torch.nn.Module):  # type: ignore[misc]
    """`self.params` is there, and the generators are seeded: the same seed makes the same weights."""

    def __init__(self, params: Params):
        super().__init__()
        self.params = params
        if params.seed is not None:
            seed_everything(params.seed, "model")


def find_weights(path: str | Path) -> dict[str, Any]:
    """Weights in a file of torch.save, a checkpoint, or a run's directory (there: the best, or else the newest).

    Where an average of the weights was kept, that is what is found.
    """
    asked = Path(path)
    if asked.is_file():
        return _weights_in(torch.load(asked, map_location="cpu", weights_only=True), asked)
    directory = asked / "checkpoints" if (asked / "checkpoints").is_dir() else asked
    saved = [directory] if layout.is_ours(directory) else layout.saved_in(directory)
    whole = [p for p in saved if (p / layout.ABOUT).exists()]
    if not whole:
        raise NotFound(
            f"there is no model in {asked}", hint="name a file of torch.save, a checkpoint or a run directory"
        )
    chosen = layout.best_of(whole) or whole[0]
    weights: dict[str, Any] = torch.load(chosen / "model.pt", map_location="cpu", weights_only=True)
    return {**weights, **_averages(chosen)}


def load_weights(model: Any, path: str | Path) -> None:
    """Into a plain module; names and shapes must fit."""
    try:
        model.load_state_dict(find_weights(path))
    except RuntimeError as error:
        raise UsageError(f"the model in {path} does not fit: {error}") from error


def _averages(checkpoint: Path) -> dict[str, Any]:
    training = torch.load(checkpoint / "training.pt", map_location="cpu", weights_only=True)
    return next((s["ema"] for s in training["schedulers"] if isinstance(s, Mapping) and "ema" in s), {})


def _weights_in(loaded: Any, path: Path) -> dict[str, Any]:
    for key in ("model", "state_dict", "model_state_dict"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not all(isinstance(v, torch.Tensor) for v in loaded.values()):
        raise UsageError(f"{path} holds no weights", hint="torch.save(model.state_dict(), path) makes such a file")
    return dict(loaded)
