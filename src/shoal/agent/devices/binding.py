"""Variables and device files that bind the workers of a node to its accelerators. Pure.

Devices are named by UUID, because numbers depend on the order in which a library counts and on what a sandbox shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every agent imports this module at its start, which must take no time
    from collections.abc import Iterable, Sequence

    from shoal.agent.devices.device import Device

RESERVED = frozenset(
    "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK "
    "ONEAPI_DEVICE_SELECTOR NVIDIA_VISIBLE_DEVICES".split()
)
"""Variables that decide which devices a worker sees. A job cannot set them: they would lead it to devices of other jobs."""


def binding_env(kind: str, slots: Sequence[int], names: Sequence[str]) -> dict[str, str]:
    """Return the variables that show a worker exactly its node's devices.

    `names` are the devices' UUIDs or numbers; without them (a launch file of an older server) `slots` are the numbers.
    """
    shown = ",".join(names or map(str, slots))
    if kind == "cuda":
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": shown}
    if kind == "rocm" and names:
        # HIP counts only what ROCR leaves visible, from 0.
        return {"ROCR_VISIBLE_DEVICES": shown, "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(names))))}
    if kind == "rocm":
        return {"HIP_VISIBLE_DEVICES": shown}
    return {"ZE_AFFINITY_MASK": shown} if kind == "xpu" else {}


def visible_name(device: Device) -> str:
    """Return the name of a device in the variables of `binding_env`. Level Zero knows only numbers."""
    return str(device.index) if device.kind == "xpu" else device.uuid or str(device.index)


def device_files(devices: Iterable[Device]) -> list[str]:
    """Return the files below /dev that the devices need; empty if a device does not tell its file."""
    files: list[str] = []
    for device in devices:
        if device.minor is None:
            return []
        if device.kind == "cuda":
            files += ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", f"/dev/nvidia{device.minor}"]
            files += ["/dev/nvidia-caps"] if device.parent else []
        else:
            files += (["/dev/kfd"] if device.kind == "rocm" else []) + [f"/dev/dri/renderD{device.minor}"]
    return list(dict.fromkeys(files))
