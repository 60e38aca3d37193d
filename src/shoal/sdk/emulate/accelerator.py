"""Patches of torch.accelerator and related functions, with the same device and count as the emulated torch.cuda."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

from . import idle
from .callers import for_user, is_called_by_user
from .cuda import Device, Event, Stream, as_original, count, memory, nothing, zero

_NOTHING = (
    "synchronize set_stream empty_cache empty_host_cache reset_peak_memory_stats reset_accumulated_memory_stats"
).split()
_ZERO = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved".split()
_DTYPES = "float32 float64 float16 bfloat16 complex64 complex128 uint8 int8 int16 int32 int64 bool".split()


def patch(torch: Any, device: Device, cuda: Any) -> None:
    """Patch torch.accelerator. `cuda` is a torch.device of that type, made before torch.device was replaced."""
    _patch_get_device_module(torch)
    for name, kind in (("Stream", Stream), ("Event", Event)):
        if hasattr(torch, name):
            setattr(torch, name, _stand_in(name, getattr(torch, name), kind))
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:  # before torch 2.6
        return
    dtypes = {getattr(torch, name) for name in _DTYPES}
    functions: dict[str, Any] = {
        **dict.fromkeys(_NOTHING, nothing),
        **dict.fromkeys(_ZERO, zero),
        "is_available": for_user(True, accelerator.is_available),
        "device_count": for_user(lambda: idle.counted(count()), accelerator.device_count),
        "current_accelerator": for_user(lambda: cuda, accelerator.current_accelerator),
        **dict.fromkeys(("current_device_index", "current_device_idx"), lambda: device.index),
        **dict.fromkeys(("set_device_index", "set_device_idx"), device.choose),
        "current_stream": lambda device=None: Stream(),
        "get_device_capability": lambda device=None: {"supported_dtypes": dtypes},
        "get_memory_info": lambda device=None: (memory("SC_AVPHYS_PAGES"), memory("SC_PHYS_PAGES")),
        "memory_stats": lambda device=None: defaultdict(int),
    }
    for name, function in functions.items():
        if hasattr(accelerator, name):
            function = as_original(getattr(accelerator, name), function)
            setattr(accelerator, name, function)
            inner = getattr(accelerator, "memory", None)
            if inner is not None and hasattr(inner, name):
                setattr(inner, name, function)
    if hasattr(accelerator, "device_index"):
        accelerator.device_index = functools.partial(_DeviceIndex, device)


def _patch_get_device_module(torch: Any) -> None:
    original = getattr(torch, "get_device_module", None)
    if original is None:
        return

    @functools.wraps(original)
    def get_device_module(device: Any = None) -> Any:
        # A CPU device object is what the script got for its cuda; a script that wants the CPU's module passes "cpu".
        kind = device.partition(":")[0] if isinstance(device, str) else getattr(device, "type", "cuda")
        is_cuda = kind == "cuda" or (kind == "cpu" and not isinstance(device, str))
        return torch.cuda if is_cuda and is_called_by_user() else original(device)

    torch.get_device_module = get_device_module


class _DeviceIndex:
    """Context manager of `with torch.accelerator.device_index(n):`."""

    def __init__(self, device: Device, index: int | None, /):
        self._device, self._index, self._before = device, index, device.index

    def __enter__(self) -> None:
        self._before = self._device.index
        if self._index is not None:
            self._device.index = self._index

    def __exit__(self, *exc: object) -> None:
        self._device.index = self._before


def _stand_in(name: str, real: Any, ours: type) -> Any:
    """Return a class that creates objects of `ours` and passes for the real one, which needs an accelerator."""

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (real, ours))

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, (real, ours))

        def __getattr__(cls, attribute: str) -> Any:
            return getattr(real, attribute)

    return Meta(name, (), {"__module__": "torch", "__qualname__": name, "__doc__": real.__doc__})
