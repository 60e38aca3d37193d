"""Prediction with a trained model."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Self

from shoal.sdk.device import choose_device
from shoal.train.batch import to_device
from shoal.train.model import load_weights

torch: Any = import_module("torch")


class Predictor:
    """Predictions of a model in evaluation mode. Override `predict` if more than a call of the model is needed.

    Args:
        model: A module; it is moved to the device.
        device: Name of the device; by default a GPU if there is one.

    Example:
        >>> predict = Predictor.load(Net(params), "shoal-runs/train-1")
        >>> logits = predict(batch)
    """

    def __init__(self, model: Any, device: str | None = None):
        self.device = choose_device(0, device, alone=True)
        self.model = model.to(self.device).eval()

    @classmethod
    def load(cls, model: Any, path: str | Path, device: str | None = None) -> Self:
        """Return a predictor with the weights of a file, a checkpoint, or the best model of a run directory."""
        load_weights(model, path)
        return cls(model, device)

    def __call__(self, batch: Any) -> Any:
        """Return the prediction for a batch, computed without gradients, dropout or batch statistics."""
        self.model.eval()
        with torch.inference_mode():
            return self.predict(to_device(batch, self.device))

    def predict(self, batch: Any) -> Any:
        """Return the prediction for a batch that is on the device: here, the model's output."""
        return self.model(batch)
