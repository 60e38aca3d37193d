"""TopSpin's PredictorBase: prediction with a trained model, without gradients."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shoal.compat.topspin.model import ModelWrapperBase

torch: Any = import_module("torch")


class PredictorBase:
    """Predictor of a model (1.2.1) or of a model wrapper (versions 4 and 5), which loads `path_inference_model` at once."""

    def __init__(self, model: Any):
        self._param = model._param
        if isinstance(model, ModelWrapperBase):
            self._model_wrapper: ModelWrapperBase | None = model
            self._model, self._device = model._user_model, model._device
            if self._param.path_inference_model:
                model._load_model_file(self._param.path_inference_model)
        else:
            self._model_wrapper = None
            self._device = torch.device(f"cuda:{self._param.gpu_inference}" if self._param.use_gpu else "cpu")
            self._model = model.to(self._device)
            model.set_device(self._device)
        self._model.eval()

    def load_model(self) -> dict[str, Any]:
        """Load the model at `path_inference_model` and return the file's content."""
        if self._model_wrapper is not None:
            return self._model_wrapper._load_model_file(self._param.path_inference_model)
        info: dict[str, Any] = self._model.load_model(self._param.path_inference_model)
        return info

    def evaluate_file(self, data_file: str) -> float:
        """Return the error on a data file; smaller is better."""
        if self._model_wrapper is None:
            raise NotImplementedError(f"{type(self).__name__} needs an evaluate_file(data_file)")
        with torch.no_grad():
            return self._model_wrapper.evaluate_file(data_file)

    def predict(self, *batch: Any) -> Any:
        with torch.no_grad():
            return self._model_wrapper.predict(*batch) if self._model_wrapper is not None else self._model(*batch)
