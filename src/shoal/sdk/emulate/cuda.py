"""Functions of torch.cuda: one emulated device per worker of this machine, with the machine's memory and no streams."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from . import idle
from .callers import for_user

_NOTHING = (
    "synchronize empty_cache ipc_collect init set_per_process_memory_fraction reset_peak_memory_stats reset_accumulated_memory_stats "
    "reset_max_memory_allocated reset_max_memory_cached reset_peak_host_memory_stats reset_accumulated_host_memory_stats "
    "set_sync_debug_mode set_stream set_rng_state set_rng_state_all manual_seed manual_seed_all seed seed_all"
).split()
_ZERO = (
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached utilization "
    "memory_usage device_memory_used temperature power_draw clock_rate get_sync_debug_mode"
).split()
_TYPES = "Float Double Half BFloat16 Byte Char Short Int Long Bool".split()
_CAPABILITY = (8, 0)
_NAME = "CPU (CUDA emulated)"
_NCCL = (2, 27, 5)
"""Version of nccl to report. Scripts check that it is recent enough for bfloat16."""


def patch(torch: Any, device: Device) -> None:
    cuda = torch.cuda
    functions: dict[str, Any] = {
        **dict.fromkeys(_NOTHING, nothing),
        **dict.fromkeys(_ZERO, zero),
        "is_available": for_user(True, cuda.is_available),
        "is_initialized": for_user(True, cuda.is_initialized),
        "device_count": for_user(lambda: idle.counted(count()), cuda.device_count),
        "is_bf16_supported": for_user(True, cuda.is_bf16_supported),
        "current_device": lambda: device.index,
        "set_device": device.choose,
        **dict.fromkeys(("is_current_stream_capturing", "can_device_access_peer"), _no),
        "get_device_name": lambda device=None: _NAME,
        "get_device_capability": lambda device=None: _CAPABILITY,
        "get_device_properties": lambda device=None: _properties(),
        "mem_get_info": lambda device=None: (memory("SC_AVPHYS_PAGES"), memory("SC_PHYS_PAGES")),
        "memory_stats": lambda device=None: defaultdict(int),
        "memory_summary": lambda device=None, abbreviated=False: f"{_NAME}: device memory is not counted",
        "memory_snapshot": lambda *args, **kwargs: [],
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * count(),
        "initial_seed": torch.initial_seed,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "stream": lambda stream: contextlib.nullcontext(stream),
        "Stream": Stream,
        "Event": Event,
        "device": NoDevice,
        "device_of": NoDevice,
        **{f"{kind}Tensor": getattr(torch, f"{kind}Tensor") for kind in _TYPES if hasattr(torch, f"{kind}Tensor")},
    }
    for name, function in functions.items():
        if hasattr(cuda, name):
            function = function if isinstance(function, type) else as_original(getattr(cuda, name), function)
            setattr(cuda, name, function)
            # Some are defined in a submodule, and some libraries import them from there.
            for inner in ("memory", "random", "streams"):
                module = getattr(cuda, inner, None)
                if module is not None and hasattr(module, name):
                    setattr(module, name, function)
    _patch_tools(torch)


def _patch_tools(torch: Any) -> None:
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        if hasattr(torch.cuda.nvtx, name):
            setattr(torch.cuda.nvtx, name, as_original(getattr(torch.cuda.nvtx, name), zero))
    torch.cuda.nvtx.range = _no_range
    torch.cuda.nccl.version = as_original(torch.cuda.nccl.version, lambda: _NCCL)
    torch.random.fork_rng = _fork_generators(torch.random.fork_rng)
    for name in ("_record_memory_history", "_dump_snapshot"):
        if hasattr(torch.cuda.memory, name):
            setattr(torch.cuda.memory, name, as_original(getattr(torch.cuda.memory, name), nothing))
    torch.cuda.profiler.start = as_original(torch.cuda.profiler.start, nothing)
    torch.cuda.profiler.stop = as_original(torch.cuda.profiler.stop, nothing)
    torch.backends.cuda.is_built = for_user(True, torch.backends.cuda.is_built)
    torch.backends.cudnn.is_available = for_user(True, torch.backends.cudnn.is_available)


class Stream:
    """Stream whose operations are complete at once, so there is nothing to wait for."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any):
        self.device, self.priority, self.cuda_stream = device, priority, 0

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None: ...


class Event:
    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **kwargs: Any):
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Return the time between two events in milliseconds."""
        return (end._at - self._at) * 1000

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def wait(self, stream: Any = None) -> None: ...


class NoDevice:
    """Context manager of `with torch.cuda.device(n):`."""

    def __init__(self, device: Any = None):
        self.idx = device if isinstance(device, int) else 0

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


class Device:
    """Device that this worker has selected, by torch.cuda or torch.accelerator."""

    def __init__(self) -> None:
        self.index = int(os.environ.get("LOCAL_RANK") or 0)

    def choose(self, device: Any) -> None:
        if isinstance(device, str) and device.rpartition(":")[2].isdigit():
            device = int(device.rpartition(":")[2])
        if isinstance(device, int):
            self.index = device


def count() -> int:
    """Return the number of emulated devices: as many as workers on this machine."""
    given = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("PET_NPROC_PER_NODE") or "1"
    return int(given) if given.isdigit() else 1


def _properties() -> SimpleNamespace:
    major, minor = _CAPABILITY
    total = memory("SC_PHYS_PAGES")
    return SimpleNamespace(
        name=_NAME, major=major, minor=minor, total_memory=total, multi_processor_count=os.cpu_count() or 1
    )


def memory(pages: str) -> int:
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def as_original(original: Any, function: Any) -> Any:
    """Return a new function with the name of the original: torch.compile keeps its rules by function object."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def _fork_generators(fork_rng: Any) -> Any:
    """Return a fork_rng without devices: only the CPU generator exists, and it is always forked."""

    @functools.wraps(fork_rng)
    def fork(devices: Any = None, enabled: bool = True, *args: Any, **kwargs: Any) -> Any:
        return fork_rng((), enabled, *args, **kwargs)

    return fork


@contextlib.contextmanager
def _no_range(msg: str = "", *args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _no(*args: Any, **kwargs: Any) -> bool:
    return False


def nothing(*args: Any, **kwargs: Any) -> None:
    return None


def zero(*args: Any, **kwargs: Any) -> int:
    return 0
