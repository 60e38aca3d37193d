"""TopSpin's models: ModelBase (1.2.1), and ModelWrapperBase around a model (versions 4 and 5)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from shoal.compat.topspin import saved
from shoal.compat.topspin.group import ensure_group
from shoal.compat.topspin.logs import Logger
from shoal.compat.topspin.param import ParamBase

torch: Any = import_module("torch")


class ModelBase(torch.nn.Module):  # type: ignore[misc]
    """Module with its parameters in `_param`."""

    def __init__(self, param: ParamBase):
        param.use_first_variant()
        super().__init__()
        self._param = param
        self._device = torch.device("cpu")

    def set_device(self, device: Any) -> None:
        self._device = device

    def load_model(self, model_file: str) -> dict[str, Any]:
        """Load the weights in a file and return its whole content. Weights that are missing in the file stay unchanged."""
        return load_weights(self, model_file, self._device)

    def load_model_from_folder(self) -> dict[str, Any] | None:
        """Load the newest model of the run in `path_work`; return its content, or None if there is none."""
        return load_newest(self, self._param, self._device)


class ModelWrapperBase:
    """Wrapper of a model: `ModelWrapperBase(param, model)` or, since version 5, `ModelWrapperBase(param, ModelClass)`."""

    def __init__(self, param: ParamBase, user_model: Any):
        param.use_first_variant()
        self._param = param
        self._device = ensure_group(param.use_gpu)
        made = user_model if isinstance(user_model, torch.nn.Module) else user_model(param)
        self._user_model = made.to(self._device)
        self._in_use: Callable[[], Any] = lambda: self._user_model

    @property
    def _model(self) -> Any:
        """Model in use: in a training step the wrapped one, whose gradients are exchanged, otherwise the plain one."""
        return self._in_use()

    def evaluate_file(self, data_file: str) -> float:
        """Return the error on a data file; smaller is better. Must be overridden."""
        raise NotImplementedError(f"{type(self).__name__} needs an evaluate_file(data_file)")

    def predict(self, *batch: Any) -> Any:
        return self._model(*batch)

    def _set_inference(self) -> None:
        self._user_model.eval()

    def _load_model_file(self, model_file: str) -> dict[str, Any]:
        return load_weights(self._user_model, model_file, self._device)

    def _load_model_folder(self) -> dict[str, Any] | None:
        return load_newest(self._user_model, self._param, self._device)


def load_weights(model: Any, model_file: str, device: Any) -> dict[str, Any]:
    info = saved.load(model_file, device)
    fit = model.load_state_dict(info["model"], strict=False)
    if fit.missing_keys or fit.unexpected_keys:
        Logger.warn(f"{model_file}: missing weights: {fit.missing_keys}, unused weights: {fit.unexpected_keys}")
    Logger.info(f"Model loading is done: {model_file}")
    return info


def load_newest(model: Any, param: ParamBase, device: Any) -> dict[str, Any] | None:
    file = saved.newest(param.path_model)
    if file is None:
        Logger.info("No model to load")
        return None
    return load_weights(model, file, device)
