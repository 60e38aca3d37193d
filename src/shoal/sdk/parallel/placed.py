"""Models that are on their devices already, and must not be moved: quantised ones, and those loaded with a device map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.core.errors import UsageError

if TYPE_CHECKING:
    import torch

_QUANTISED = ("is_quantized", "is_loaded_in_8bit", "is_loaded_in_4bit")
"""Attributes by which Hugging Face libraries mark a model that was loaded in fewer bits."""


def is_placed(model: Any) -> bool:
    """Check whether the library that loaded the model has put it on its devices."""
    return bool(getattr(model, "hf_device_map", None)) or any(
        getattr(model, name, False) is True for name in _QUANTISED
    )


def moved(model: Any, device: torch.device) -> Any:
    """Return the model on the device; as it is if it was placed."""
    return model if is_placed(model) else model.to(device)


def refuse_placed(model: Any, name: str) -> None:
    """Raise UsageError if the model is spread over several devices: its parts cannot be dealt out a second time."""
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        raise UsageError(
            f"A model that device_map has spread over several devices cannot be trained with parallel={name!r}.",
            hint='Load it without device_map, or use parallel="none" with one worker.',
        )
