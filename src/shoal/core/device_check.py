"""Check that a worker's torch can use the accelerator its job was placed on (SHOAL_DEVICE), and explain why if it cannot.

Standard library only: interpreters without shoal run this file by its path (sdk/emulate/startup). Nothing here may initialise
CUDA in the calling process: the script may still set CUDA_VISIBLE_DEVICES after `import torch`, or fork, and both stop working
once CUDA is initialised. So every question that needs the driver is asked in a forked child.
"""

from __future__ import annotations

import os
import select
import signal
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

DEVICE = "SHOAL_DEVICE"
ALLOW_CPU = "SHOAL_ALLOW_CPU"
EMULATE_CUDA = "SHOAL_EMULATE_CUDA"
REFUSED = "[shoal] refused: "
"""Start of the line that a worker prints before it ends. The agent reports the rest of the line as the reason."""
ELSEWHERE = "Another machine may help"
"""Part of every refusal that is caused by the machine and not by the installed torch. The scheduler looks for it
(core/faults.py)."""
_NAMES = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU", "cpu": "CPU"}
_BUILDS = {"cuda": "a CUDA build", "rocm": "a ROCm build", "xpu": "an XPU build", "cpu": "a CPU build"}
_VISIBLE = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
}
_FILES = {"cuda": "/dev/nvidiactl", "rocm": "/dev/kfd", "xpu": "/dev/dri"}
_CHILD_TIMEOUT_S = 120.0
_LONGEST = 220


class Broken(NamedTuple):
    """The reason why torch cannot use the promised accelerator, and a hint."""

    reason: str
    hint: str

    def __str__(self) -> str:
        return f"{self.reason}. {self.hint}"


def promised(env: Mapping[str, str] | None = None) -> str | None:
    """Return the kind of accelerator this process must have (cuda, rocm, xpu), or None if the CPU is fine."""
    env = os.environ if env is None else env
    kind = env.get(DEVICE, "")
    # With an emulated CUDA the user has chosen the CPU on purpose.
    return kind if kind in _FILES and env.get(ALLOW_CPU) != "1" and env.get(EMULATE_CUDA) != "1" else None


def broken(torch: Any, env: Mapping[str, str] | None = None) -> Broken | None:
    """Return why the imported module `torch` cannot use the promised accelerator; None if it can, or if none is promised."""
    env = os.environ if env is None else env
    kind = promised(env)
    build = _build(torch) if kind else None
    if kind is None or build is None:
        return None
    name, version = _NAMES[kind], getattr(torch, "__version__", "")
    begin = f"this worker has {'an' if kind == 'xpu' else 'a'} {kind} slot, but torch {version}"
    options = "--allow-cpu to train on the CPU there, or --device cpu to run on a CPU slot"
    if build != kind:
        detail = " (torch.version.cuda is None)" if (kind, build) == ("cuda", "cpu") else ""
        return Broken(
            f"{begin} is {_BUILDS[build]}{detail}", f"Install {_BUILDS[kind]} of torch, or submit with {options}"
        )
    error = _device_error(torch, kind)
    if error is None:
        return None
    where = "".join(f"; {name}={env[name]!r}" for name in _VISIBLE[kind] if name in env)
    return Broken(
        f"{begin} sees no {name} device: {error}{_permission(kind)}{where}",
        f"{ELSEWHERE} (--exclude MACHINE); or submit with {options}",
    )


def refuse(torch: Any) -> None:
    """End this process with the reason if torch cannot use the promised accelerator. Called right after `import torch`."""
    if (found := broken(torch)) is not None:
        raise SystemExit(f"{REFUSED}{found}")


def _build(torch: Any) -> str | None:
    """Return the kind of device torch was built for, or None if this `torch` does not say."""
    version = getattr(torch, "version", None)
    if version is None or not hasattr(version, "cuda"):
        return None
    if getattr(version, "hip", None):
        return "rocm"
    if version.cuda:
        return "cuda"
    # Before 2.6 torch.version says nothing about XPU.
    has_xpu = getattr(version, "xpu", None) or getattr(getattr(torch, "_C", None), "_has_xpu", False)
    return "xpu" if has_xpu else "cpu"


def _device_error(torch: Any, kind: str) -> str | None:
    """Return torch's own error text if there is no device; None if there is one, or if no answer came."""
    module = torch.xpu if kind == "xpu" else torch.cuda
    if module.is_initialized() or _is_sure(torch, kind):
        return None
    return _initialise_in_child(module)


def _is_sure(torch: Any, kind: str) -> bool:
    """Return whether NVML or AMD SMI sees a device that this build can use. Fast, and does not initialise the device."""
    try:
        if kind == "rocm":
            return torch.cuda._device_count_amdsmi() > 0 and _may_open("/dev/kfd")
        return kind == "cuda" and torch.cuda._device_count_nvml() > 0 and _driver_fits(torch.version.cuda)
    except Exception:  # this version of torch has no such function: ask the driver
        return False


def _driver_fits(cuda: str) -> bool:
    import ctypes

    version = ctypes.c_int()
    # This is the only call of the driver that does not initialise it.
    failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return not failed and version.value // 1000 >= int(cuda.split(".")[0]) and _may_open("/dev/nvidia-uvm")


def _initialise_in_child(module: Any) -> str | None:
    """Initialise the device in a forked child. Return its error; None if it worked or no answer came in time."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # Python warns about forks in a process with threads; this child only calls the driver
        child = os.fork()
    if child == 0:
        try:
            os.write(write, _initialise(module).encode()[:4096])
        finally:
            os._exit(0)
    os.close(write)
    try:
        answered = select.select([read], [], [], _CHILD_TIMEOUT_S)[0]
        answer = os.read(read, 4096).decode("utf-8", "replace") if answered else ""
    finally:
        os.close(read)
        _end(child)
    return answer.removeprefix("error ") if answer.startswith("error ") else None


def _initialise(module: Any) -> str:
    try:
        module.init()
        found = "" if module.device_count() else "none is visible"
    except BaseException as error:
        found = " ".join(str(error).split()) or type(error).__name__
    found = found if len(found) <= _LONGEST else found[: _LONGEST - 1] + "…"
    return f"error {found}" if found else "ok"


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def _permission(kind: str) -> str:
    path = _FILES[kind]
    if not os.path.exists(path):  # noqa: PTH110
        return f"; there is no {path}" if kind == "rocm" else ""
    if kind == "xpu" or _may_open(path):
        return ""
    groups = ": the user must be in the groups video and render" if kind == "rocm" else ""
    return f"; no permission on {path}{groups}"


def _may_open(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)
