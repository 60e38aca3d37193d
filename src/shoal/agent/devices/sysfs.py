"""AMD and Intel GPUs as the kernel's files show them: KFD's topology and the DRM devices below /sys. No vendor library needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shoal.agent.devices.device import Device

Found = Device | str
KFD = "sys/class/kfd/kfd/topology/nodes"
_BUILT_IN = frozenset(
    (90002, 90003, 90009, 90012, 100103, 100303, 100305, 100306, 100307, 110003, 110500, 110502, 110503)
)
"""`gfx_target_version` of the graphics units in Ryzen processors (gfx902 … gfx1153), which ROCm's torch does not support.
gfx1151 (Ryzen AI Max) and MI300A are processors with a GPU that it does support."""
_FIRST_SUPPORTED_APU = 90400
_XPU_DRIVERS = frozenset({"i915", "xe"})
_IGPU_LOCATION = "0000:00:02.0"
"""PCI address of every graphics unit that is built into an Intel processor."""


def amd(root: Path) -> Iterator[Found]:
    """Yield the GPUs that ROCm can use. Graphics units built into Ryzen processors are named in a line, but not counted."""
    nodes = root / KFD
    if not nodes.is_dir():
        return
    index = 0
    for node in sorted(nodes.iterdir(), key=lambda n: int(n.name) if n.name.isdigit() else 0):
        try:
            facts = _properties(node / "properties")
            gpu_id = int((node / "gpu_id").read_text().strip() or 0) if (node / "gpu_id").exists() else None
        except PermissionError:
            # Another container's device: the kernel lists it and lets nobody else read it.
            yield f"AMD device of node {node.name} cannot be read (no permission); it is not used"
            continue
        except OSError as error:
            yield f"AMD device of node {node.name} cannot be read ({error.strerror}); it is not used"
            continue
        if not facts.get("simd_count") or gpu_id == 0:
            continue  # a CPU
        if _is_built_in(facts):
            name = _read(node / "name") or "of AMD"
            yield f"the graphics unit {name} is built into the processor; it is not used for training"
            continue
        device = _amd_device(root, node, facts, index)
        if device.problem:
            yield f"GPU {index} ({device.model}): {device.problem}"
        yield device
        index += 1


def numa_node(root: Path, pci: str) -> int | None:
    """Return the NUMA node of a PCI device; None if the machine has only one, or does not tell."""
    with suppress(OSError, ValueError):
        number = int((root / "sys/bus/pci/devices" / pci / "numa_node").read_text())
        return number if number >= 0 and (root / "sys/devices/system/node/node1").is_dir() else None
    return None


def intel(root: Path) -> Iterator[Found]:
    """Yield Intel's discrete GPUs (Arc, Flex, Max); the unit built into a processor is not counted."""
    cards = root / "sys/class/drm"
    if not cards.is_dir():
        return
    found: list[tuple[str, Path]] = []
    for card in cards.iterdir():
        device = card / "device"
        with suppress(OSError):
            if re.fullmatch(r"renderD\d+", card.name) and _read(device / "vendor") == "0x8086":
                found.append((_uevent(device, "PCI_SLOT_NAME"), card))
    index = 0
    for pci, card in sorted(found):
        device = card / "device"
        if pci == _IGPU_LOCATION or _uevent(device, "DRIVER") not in _XPU_DRIVERS:
            continue
        model = _read(device / "label") or f"Intel GPU {_read(device / 'device').removeprefix('0x')}"
        sizes = [_number(_read(device / name)) for name in ("tile0/vram0/total", "lmem_total_bytes")]
        yield Device(
            kind="xpu",
            index=index,
            uuid=_read(device / "unique_id"),
            minor=int(card.name.removeprefix("renderD")),
            pci=pci,
            model=model,
            memory=max(sizes) or None,
            driver=_uevent(device, "DRIVER"),
        )
        index += 1


def _is_built_in(facts: dict[str, int]) -> bool:
    target = facts.get("gfx_target_version", 0)
    return target in _BUILT_IN or (bool(facts.get("cpu_cores_count")) and target < _FIRST_SUPPORTED_APU)


def _amd_device(root: Path, node: Path, facts: dict[str, int], index: int) -> Device:
    location, domain = facts.get("location_id", 0), facts.get("domain", 0)
    pci = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
    unique = facts.get("unique_id", 0)
    driver = _read(root / "sys/module/amdgpu/version")
    minor = facts.get("drm_render_minor")
    errors = ras_errors(root, pci)
    problem = f"{errors} uncorrectable memory error{'s' if errors != 1 else ''} since the last reset" if errors else ""
    if minor is not None and minor <= 0:
        problem = "its device file is missing"
    return Device(
        kind="rocm",
        index=index,
        uuid=f"GPU-{unique:016x}" if unique else "",
        minor=minor or None,
        pci=pci,
        model=_read(root / f"sys/bus/pci/devices/{pci}/product_name") or _read(node / "name"),
        memory=_local_memory(node) or None,
        driver=driver,
        runtime=_read(root / "opt/rocm/.info/version"),
        problem=problem,
        is_faulty=bool(errors),
    )


def ras_errors(root: Path, pci: str) -> int | None:
    """Return the uncorrectable errors that an AMD GPU has counted in all its blocks; None if it counts none."""
    found = [_read(file) for file in (root / "sys/bus/pci/devices" / pci / "ras").glob("*_err_count")]
    counts = [int(count) for text in found for count in re.findall(r"^ue:\s*(\d+)", text, re.MULTILINE)]
    return sum(counts) if counts else None


def _local_memory(node: Path) -> int:
    """Return the bytes of a node's own memory: heaps of type 1 (public) and 2 (private) are on the card."""
    total = 0
    for bank in sorted((node / "mem_banks").glob("*")) if (node / "mem_banks").is_dir() else ():
        with suppress(OSError):
            facts = _properties(bank / "properties")
            total += facts.get("size_in_bytes", 0) if facts.get("heap_type") in (1, 2) else 0
    return total


def _properties(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: _number(pair[1]) for pair in pairs if len(pair) == 2}


def _uevent(device: Path, key: str) -> str:
    lines = (line.partition("=") for line in _read(device / "uevent").splitlines())
    return next((value for name, _, value in lines if name == key), "")


def _number(text: str) -> int:
    with suppress(ValueError):
        return int(text, 0)
    return 0


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""
