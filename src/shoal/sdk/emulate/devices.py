"""Patches of devices and of functions that create or move tensors: cuda becomes cpu."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

from . import idle

_FACTORIES = (
    "arange as_tensor asarray bartlett_window blackman_window empty empty_like empty_permuted empty_quantized empty_strided eye "
    "full full_like hamming_window hann_window kaiser_window linspace logspace normal ones ones_like rand rand_like randint "
    "randint_like randn randn_like randperm range scalar_tensor sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor "
    "sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor tensor tril_indices triu_indices zeros zeros_like set_default_device"
).split()
_NEW = "new_empty new_empty_strided new_full new_ones new_tensor new_zeros".split()


def patch(torch: Any) -> None:
    # Computed here from torch's own functions and cached; otherwise `with torch.device(…)` would not know them any more.
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("torch.utils._device")._device_constructors()
    mapped = Mapping(torch)
    for owner, names in ((torch, _FACTORIES), (torch.Tensor, _NEW), (torch.fft, ("fftfreq", "rfftfreq"))):
        for name in names:
            if hasattr(owner, name):
                original = getattr(owner, name)
                setattr(owner, name, mapped.by_keyword(original, first=name == "set_default_device"))
                _register_for_script(torch, original, getattr(owner, name))
    torch.Tensor.to = mapped.by_keyword(torch.Tensor.to, first=True, method=True)
    torch.nn.Module.to = mapped.by_keyword(torch.nn.Module.to, first=True, method=True)
    for owner in (torch.Tensor, torch.UntypedStorage, torch.TypedStorage):
        owner.cuda = _stay(owner.cuda)
    torch.Tensor.pin_memory = _stay(torch.Tensor.pin_memory)
    torch.Tensor.record_stream = _stay(torch.Tensor.record_stream)
    torch.Tensor.type = _type(torch.Tensor.type)
    torch.set_default_tensor_type = _default_type(torch.set_default_tensor_type)
    torch.load = _load(torch.load, mapped)
    torch.jit.load = _load(torch.jit.load, mapped)
    torch.device = _stand_in("device", torch.device, mapped)
    torch.Generator = _stand_in("Generator", torch.Generator, mapped)
    _patch_amp(torch, mapped)


def _register_for_script(torch: Any, original: Any, ours: Any) -> None:
    """Register a replaced function with torch.jit.script, which identifies built-in functions by object."""
    known: Any = getattr(torch.jit, "_builtins", None)
    if known is not None and (operator := known._find_builtin(original)):
        known._register_builtin(ours, operator)


class Mapping:
    """Maps a device given by a script to the one to use: cuda and bare indices become cpu."""

    def __init__(self, torch: Any):
        self._device = torch.device
        self._cpu = torch.device("cpu")

    def __call__(self, device: Any) -> Any:
        if isinstance(device, str):
            return "cpu" if device.partition(":")[0] == "cuda" else device
        if isinstance(device, self._device):
            return self._cpu if device.type == "cuda" else device
        # A bare number is the index of an accelerator.
        return self._cpu if isinstance(device, int) and not isinstance(device, bool) else device

    def by_keyword(self, function: Callable[..., Any], *, first: bool = False, method: bool = False) -> Any:
        """Return `function` with its `device` mapped; with `first`, its first argument may be a device too."""
        at = 1 if method else 0

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if "device" in kwargs:
                idle.used()
                kwargs["device"] = self(kwargs["device"])
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            if first and len(args) > at:
                idle.used()
                args = (*args[:at], self(args[at]), *args[at + 1 :])
            return function(*args, **kwargs)

        return call


def _stand_in(name: str, real: Any, mapped: Mapping) -> Any:
    """Return a class that creates objects of the real one, which cannot be subclassed, and passes for it."""

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if args and mapped(args[0]) is not args[0]:
                return real("cpu")
            if "cuda" in (kwargs.get("type"), str(kwargs.get("device")).partition(":")[0]):
                return real("cpu")
            return real(*args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __getattr__(cls, attribute: str) -> Any:
            return getattr(real, attribute)

    return Meta(name, (), {"__module__": "torch", "__qualname__": name, "__doc__": real.__doc__})


def _load(load: Callable[..., Any], mapped: Mapping) -> Any:
    @functools.wraps(load)
    def call(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(f, _location(map_location, mapped), *args, **kwargs)

    return call


def _location(given: Any, mapped: Mapping) -> Any:
    """Return a map_location that loads to the CPU. The default, a mapping or a function may otherwise choose a GPU."""
    if given is None or isinstance(given, dict):
        return "cpu"
    if not callable(given):
        return mapped(given)

    def locate(storage: Any, location: str) -> Any:
        found = given(storage, location)
        return storage if found is None else found

    return locate


def _type(method: Callable[..., Any]) -> Any:
    @functools.wraps(method)
    def type(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        return method(self, _plain_type(dtype), *args, **kwargs) if dtype is not None else method(self)

    return type


def _default_type(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def set_default_tensor_type(t: Any) -> Any:
        return function(_plain_type(t))

    return set_default_tensor_type


def _plain_type(name: Any) -> Any:
    return name.replace("torch.cuda.", "torch.") if isinstance(name, str) else name


def _patch_amp(torch: Any, mapped: Mapping) -> None:
    """Make autocast use bfloat16, which every CPU supports, and GradScaler scale on the CPU."""
    autocast = torch.amp.autocast_mode.autocast
    enter = autocast.__init__

    @functools.wraps(enter)
    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        emulated = mapped(device_type)
        # "cpu" may be the type of a device that the script created as cuda.
        if (emulated != device_type and dtype is None) or (emulated == "cpu" and dtype is torch.float16):
            dtype = torch.bfloat16
        enter(self, emulated, dtype, *args, **kwargs)

    autocast.__init__ = init
    scaler = getattr(torch.amp, "GradScaler", None)
    if scaler is not None:
        make = scaler.__init__

        @functools.wraps(make)
        def init_scaler(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
            make(self, mapped(device), *args, **kwargs)

        scaler.__init__ = init_scaler


def _stay(original: Any) -> Any:
    @functools.wraps(original)
    def stay(self: Any, *args: Any, **kwargs: Any) -> Any:
        idle.used()
        return self

    return stay
