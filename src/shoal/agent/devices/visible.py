"""The site's own restrictions: variables such as CUDA_VISIBLE_DEVICES that were set before Shoal was started. Pure.

A batch system or an admin sets them to keep devices for other users, so Shoal never offers the others. Numbers are read in
PCI order. As with CUDA itself, an entry that names no device hides all entries after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.agent.devices.device import Device, order

VARIABLES = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
}
"""Kind → variables that restrict its devices; each of them counts within what the ones before it leave."""


def restrict(devices: Sequence[Device], env: Mapping[str, str]) -> tuple[list[Device], list[str]]:
    """Return the devices that the site's variables leave, and one line for each variable that hides any."""
    kept, said = [d for d in devices if d.kind not in VARIABLES], []
    for kind, names in VARIABLES.items():
        left = sorted((d for d in devices if d.kind == kind), key=order)
        for name in names:
            value = env.get(name)
            if value is None or not left or (name == "CUDA_VISIBLE_DEVICES" and _is_repeated(kind, names, env)):
                continue
            before, left = len(left), _named(left, value)
            if len(left) < before:
                said.append(f"{name}={value} of this machine leaves {len(left)} of {before} {kind} devices")
        kept += left
    return kept, said


def _is_repeated(kind: str, names: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES only repeats HIP_VISIBLE_DEVICES, which has the same meaning on ROCm."""
    return kind == "rocm" and "HIP_VISIBLE_DEVICES" in names and "HIP_VISIBLE_DEVICES" in env


def _named(devices: list[Device], value: str) -> list[Device]:
    chosen: list[Device] = []
    for entry in (part.strip() for part in value.split(",")):
        found = _matching(devices, entry)
        if not found:
            break
        chosen += [device for device in found if device not in chosen]
    return chosen


def _matching(devices: list[Device], entry: str) -> list[Device]:
    """Return the device that an entry names; a GPU that is cut into MIG slices stands for all of them."""
    if entry.isdigit():
        numbers = sorted({d.index for d in devices})
        at = numbers[int(entry)] if int(entry) < len(numbers) else None
        return [d for d in devices if d.index == at]
    if entry.startswith("MIG-GPU-"):  # drivers before 470: MIG-GPU-<uuid>/<gi>/<ci>
        return [d for d in devices if d.uuid == entry]
    whole, _, tile = entry.partition(".")  # ZE_AFFINITY_MASK may name a tile, as in 0.1
    if whole.isdigit() and tile.isdigit():
        return _matching(devices, whole)
    if not entry or entry in ("-1", "NoDevFiles"):
        return []
    exact = [d for d in devices if d.uuid == entry]
    begun = [d for d in devices if d.uuid.lower().startswith(entry.lower())]
    of_parent = [d for d in devices if d.parent and d.parent.lower().startswith(entry.lower())]
    return exact or (begun if len(begun) == 1 else []) or of_parent
