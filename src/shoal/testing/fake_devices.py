"""Made-up machines for tests without a GPU: a fake libnvidia-ml.so.1, trees of /sys and /dev, a fake nvidia-smi.

```python
box = Box(tmp_path)
box.nvml(build_nvml(folder), gpu("NVIDIA H100 80GB HBM3"), gpu("Tesla T4", error=15))
inventory.scan(box.root, box.env)
```
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

GIB = 1 << 30
SOURCE = Path(__file__).with_name("fake_nvml.c")
SCRIPT = "FAKE_NVML"
"""Variable with the file that describes the made-up machine; fake_nvml.c says how."""


def build_nvml(folder: Path) -> Path:
    """Compile the fake library into a folder, once, and return the folder (for LD_LIBRARY_PATH)."""
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        made = folder / f"made-{os.getpid()}.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE)], check=True, timeout=120)
        made.replace(library)  # several test processes may build it at once
    return folder


def gpu(model: str = "NVIDIA H100 80GB HBM3", *, gib: int = 80, **more: int | str) -> dict[str, int | str]:
    """Return an NVIDIA GPU; `more` are fields of fake_nvml.c (`error`, `hang`, `ecc`, `mig`, `used`, `pids`, `uuid`, …)."""
    return {"name": model, "memory": gib * GIB if gib >= 0 else -1, **more}


class Box:
    """A made-up machine: `root` is the root of its file system, `env` the environment of its processes."""

    def __init__(self, folder: Path):
        self.root, self._bin = folder / "root", folder / "bin"
        for path in (self.root, self._bin):
            path.mkdir(parents=True, exist_ok=True)
        self.env = {k: v for k, v in os.environ.items() if "VISIBLE_DEVICES" not in k} | {"PATH": str(self._bin)}

    def file(self, path: str, text: str = "") -> Path:
        """Write a file below the root, or replace it as a whole."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.new")
        draft.write_text(text)
        draft.replace(file)
        return file

    def nvml(
        self,
        library: Path,
        *gpus: dict[str, int | str],
        slices: int = 0,
        first: str = "",
        xids: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Have a driver with these GPUs; call it again to change what running processes read.

        Args:
            library: Folder of the fake library (`build_nvml`).
            gpus: The GPUs in PCI order (`gpu`).
            slices: Number of MIG slices on each GPU that has `mig`.
            first: Further lines for fake_nvml.c.
            xids: Events (GPU, Xid) that were reported so far; processes that wait get those that are new.
        """
        self.file("dev/nvidiactl")
        lines = [first] if first else []
        for index, given in enumerate(gpus):
            known: dict[str, int | str] = {
                "uuid": f"GPU-{index:08x}-1111-2222-3333-444444444444",
                "pci": f"00000000:{16 + index:02X}:00.0",
                "minor": index,
            }
            lines.append("gpu " + ";".join(f"{key}={value}" for key, value in (known | given).items()))
            for part in range(slices if given.get("mig") else 0):
                uuid, name = f"MIG-{index:04x}{part:04x}-5555-6666-7777-888888888888", f"{given['name']} MIG 1g.10gb"
                lines.append(f"slice uuid={uuid};name={name};memory={10 * GIB}")
        lines += [f"event gpu={index};xid={xid}" for index, xid in xids]
        script = self.file("fake-nvml.txt", "\n".join(lines) + "\n")
        self.env |= {"LD_LIBRARY_PATH": str(library), SCRIPT: str(script)}

    def smi(self, text: str, code: int = 0) -> None:
        """Have an nvidia-smi that prints this text, on a machine where NVML cannot be loaded."""
        self.file("dev/nvidiactl")
        program = self._bin / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{text}\nEND\nexit {code}\n")
        program.chmod(0o755)

    def kfd(self, node: int, *, simds: int = 0, target: int = 90402, gib: int = 0, name: str = "gfx942") -> Path:
        """Add a node of KFD's topology: a GPU, or a CPU without `simds`. Return its file `properties`."""
        base = f"sys/class/kfd/kfd/topology/nodes/{node}"
        self.file(f"{base}/gpu_id", f"{1000 + node if simds else 0}\n")
        self.file(f"{base}/name", f"{name}\n")
        if gib:
            self.file(f"{base}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {gib * GIB}\n")
        facts = {
            "cpu_cores_count": 0 if simds else 64,
            "simd_count": simds,
            "gfx_target_version": target if simds else 0,
            "location_id": node << 8,
            "domain": 0,
            "drm_render_minor": 128 + node if simds else 0,
            "unique_id": 0xABC000 + node if simds else 0,
        }
        return self.file(f"{base}/properties", "".join(f"{key} {value}\n" for key, value in facts.items()))

    def intel(self, number: int, pci: str, *, gib: int, driver: str = "xe", label: str = "") -> None:
        """Add an Intel GPU with the render node /dev/dri/renderD<number>."""
        self.file(f"sys/bus/pci/devices/{pci}/class", "0x030000\n")
        self.file(f"sys/bus/pci/devices/{pci}/vendor", "0x8086\n")
        device = f"sys/class/drm/renderD{number}/device"
        self.file(f"{device}/vendor", "0x8086\n")
        self.file(f"{device}/device", "0x56c0\n")
        self.file(f"{device}/uevent", f"DRIVER={driver}\nPCI_SLOT_NAME={pci}\n")
        self.file(f"{device}/label", f"{label}\n")
        self.file(f"{device}/tile0/vram0/total", f"{gib * GIB}\n")

    def card(self, pci: str, vendor: str = "0x10de") -> None:
        """Add a graphics card to the PCI bus."""
        self.file(f"sys/bus/pci/devices/{pci}/class", "0x030200\n")
        self.file(f"sys/bus/pci/devices/{pci}/vendor", f"{vendor}\n")
