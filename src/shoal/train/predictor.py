"""A trained model put to use."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Self

from shoal.sdk.device import choose_device
from shoal.train.batch import to_device
from shoal.train.model import load_weights

torch: Any = import_module("torch")


class Predictor:
    """Override `predict` where calling the model with the batch is not all there is to it."""

    def __init__(self, model: Any, device: str | None = None):
        self.device = choose_device(0, device, alone=True)
        self.model = model.to(self.device).eval()

    @classmethod
    def load(cls, model: Any, path: str | Path, device: str | None = None) -> Self:
        """With the weights of a file, a checkpoint, or a run's best model."""
        load_weights(model, path)
        return cls(model, device)

    def __call__(self, batch: Any) -> Any:
        """Without gradients, dropout or batch statistics."""
        self.model.eval()
        with torch.inference_mode():
            return self.predict(to_device(batch, self.device))

    def predict(self, batch: Any) -> Any:
        return self.model(batch)
