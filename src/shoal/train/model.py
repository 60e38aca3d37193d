"""Models that are built from Params, and loading of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core.errors import NotFound, UsageError
from shoal.sdk.parallel.names import fitted, plain_names
from shoal.sdk.saving import layout, restore
from shoal.sdk.saving.rng import seed_everything
from shoal.train.params import Params

torch: Any = import_module("torch")


class Model(torch.nn.Module):  # type: ignore[misc]
    """Module built from Params. The constructor seeds all random generators, so the same seed gives the same weights.

    Args:
        params: The parameters, available as `self.params`.

    Example:
        >>> class Net(Model):
        ...     def __init__(self, params):
        ...         super().__init__(params)
        ...         self.layer = torch.nn.Linear(8, params.hidden)
    """

    def __init__(self, params: Params):
        super().__init__()
        self.params = params
        if params.seed is not None:
            seed_everything(params.seed, "model")


def find_weights(path: str | Path) -> dict[str, Any]:
    """Return the weights in a torch.save file, a checkpoint or a run directory (there: the best, else the newest).

    If the checkpoint has averaged weights (`ema`), they replace the plain ones. Raises NotFound if there is no model.
    """
    asked = Path(path)
    if asked.is_file():
        return _weights_in(torch.load(asked, map_location="cpu", weights_only=True), asked)
    directory = asked / "checkpoints" if (asked / "checkpoints").is_dir() else asked
    saved = [directory] if layout.is_ours(directory) else layout.saved_in(directory)
    whole = [p for p in saved if (p / layout.ABOUT).exists()]
    if not whole:
        raise NotFound(f"there is no model in {asked}", hint="give a torch.save file, a checkpoint or a run directory")
    chosen = layout.best_of(whole) or whole[0]
    weights: dict[str, Any] = restore.read_file(chosen, "model.pt")
    return {**plain_names(weights), **plain_names(_averages(chosen))}


def load_weights(model: Any, path: str | Path) -> None:
    """Load weights into a plain module; raise UsageError if names or shapes do not match.

    Example:
        >>> load_weights(model, "shoal-runs/train-1")
    """
    try:
        model.load_state_dict(fitted(find_weights(path), model.state_dict()))
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
        raise UsageError(f"{path} does not contain weights", hint="create it with torch.save(model.state_dict(), path)")
    return plain_names(loaded)
