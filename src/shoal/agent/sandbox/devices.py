"""Device files that belong to the slots of a node."""

from __future__ import annotations

from shoal.agent.wire import Launch


def devices_of(launch: Launch) -> list[str]:
    """Return the device files that the workers of a node need; those that do not exist are ignored when mounting.

    Launches of an older server, and machines that report no device files, have them by the numbers of the slots.
    """
    if launch.device_files:
        return list(launch.device_files)
    if launch.slot_kind == "cuda":
        found = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
        return found + [f"/dev/nvidia{slot}" for slot in launch.slots]
    return {"rocm": ["/dev/kfd", "/dev/dri"], "xpu": ["/dev/dri"]}.get(launch.slot_kind, [])


def system_folders(launch: Launch) -> list[str]:
    """Return the folders of /sys from which NCCL and drivers learn how accelerators are connected; none for CPU jobs."""
    return [] if launch.slot_kind == "cpu" else ["/sys/devices", "/sys/class", "/sys/bus"]
