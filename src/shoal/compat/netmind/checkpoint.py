"""Checkpoint of an `nmp` script on disk, read with plain torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_WEIGHTS = ("model.pt", "pytorch_model.bin", "state_dict.pt")


class NetmindCheckPoint:
    """Checkpoint in a folder: its step, its weights, and loading them into a model."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def step(self) -> int | None:
        """Training step of the checkpoint; None if unknown."""
        try:
            step = json.loads((self.path / "shoal.json").read_text())["step"]
        except (OSError, ValueError, KeyError):
            return None
        return int(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the model's weights on the CPU."""
        import torch

        for name in _WEIGHTS:
            if (self.path / name).is_file():
                state: dict[str, Any] = torch.load(self.path / name, map_location="cpu", weights_only=True)
                return state
        raise FileNotFoundError(f"{self.path} contains none of {', '.join(_WEIGHTS)}")

    def load_model(self, model: Any) -> Any:
        """Load the weights in place, into the model inside a DDP wrapper if there is one; return `model`."""
        getattr(model, "module", model).load_state_dict(self.state_dict())
        return model
