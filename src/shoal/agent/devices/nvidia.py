"""NVIDIA GPUs by NVML (nvidia-ml-py), or by the text of nvidia-smi where the library cannot be loaded.

A call of NVML can block forever when a driver hangs, so only the child process of `read` calls `by_nvml`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from shoal.agent.devices import gauges
from shoal.agent.devices.device import Device

Found = Device | str
"""A device, or a line about a problem."""
_FIELDS = ("index", "uuid", "name", "pci.bus_id", "memory.total", "driver_version", "mig.mode.current")
_SMI_TIMEOUT_S = 20.0


class NoLibrary(Exception):
    """NVML cannot be loaded here."""


class Unusable(Exception):
    """There is a driver, but it refuses to work, so nothing is known about the GPUs."""


def by_nvml() -> Iterator[Found]:
    """Yield every GPU and MIG slice as soon as it is read; a GPU that fails does not hide the others."""
    try:
        import pynvml as nvml
    except ImportError:
        raise NoLibrary("nvidia-ml-py is not installed") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            raise NoLibrary("libnvidia-ml.so.1 was not found") from None
        if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
            yield "the NVIDIA driver is installed but not loaded; jobs run on the CPU"
            return
        advice = "; reboot this machine" if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH else ""
        raise Unusable(f"the NVIDIA driver cannot be used: {_words(error)}{advice}") from None
    driver = _text(_try(nvml, nvml.nvmlSystemGetDriverVersion, ""))
    cuda = int(_try(nvml, nvml.nvmlSystemGetCudaDriverVersion, 0))
    versions = {"driver": driver, "runtime": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""}
    for index in range(nvml.nvmlDeviceGetCount()):
        yield from _gpu(nvml, index, versions)


def islands() -> list[list[str]]:
    """Return the UUIDs of each group of GPUs that NVLink connects, directly or through switches."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handles = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                handles[_text(nvml.nvmlDeviceGetUUID(handle))] = handle
    except Exception:  # no NVML: what is connected is not known
        return []
    groups: list[list[str]] = []
    for uuid, handle in handles.items():
        mine = next((g for g in groups if _is_linked(nvml, handles[g[0]], handle)), None)
        if mine is None:
            groups.append([uuid])
        else:
            mine.append(uuid)
    return [group for group in groups if len(group) > 1]


def _is_linked(nvml: Any, one: Any, other: Any) -> bool:
    with suppress(nvml.NVMLError):
        status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        return bool(status == nvml.NVML_P2P_STATUS_OK)
    return False


def gauges_now() -> Iterator[gauges.Gauge]:
    """Yield the gauges of all GPUs by NVML; nothing where it cannot be loaded."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        yield from gauges.by_nvml(nvml)
    except Exception:  # the inventory tells what is wrong
        return


def users() -> Iterator[tuple[str, list[int]]]:
    """Yield each GPU on which processes compute, with their pids; nothing where NVML cannot be loaded."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                pids = [int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
                if pids:
                    yield _text(nvml.nvmlDeviceGetUUID(handle)), pids
    except Exception:  # the inventory tells what is wrong
        return


def by_smi(env: Mapping[str, str] | None = None) -> Iterator[Found]:
    """Yield the GPUs that nvidia-smi lists, and a line for each it cannot reach. It exits with 15 if one GPU is lost."""
    program = shutil.which("nvidia-smi", path=env.get("PATH") if env is not None else None)
    if program is None:
        return
    query = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False, env=env)
    yield from parse_smi(done.stdout, done.stderr, done.returncode)


def parse_smi(out: str, err: str = "", code: int = 0) -> Iterator[Found]:
    """Yield the devices and problems in the output of nvidia-smi."""
    count = 0
    for line in out.splitlines():
        values = [part.strip() for part in line.split(",")]
        if len(values) == len(_FIELDS) and values[0].isdigit():
            index, uuid, model, pci, memory, driver, mig = values
            count += 1
            problem = "it is cut into MIG slices, which need NVML to be counted" if mig == "Enabled" else ""
            size = int(memory) << 20 if memory.isdigit() else None
            known = {"uuid": uuid, "model": model, "driver": driver, "memory": size, "problem": problem}
            yield Device(kind="cuda", index=int(index), pci=_address(pci), **known)  # type: ignore[arg-type]
        elif line.strip():
            yield f"nvidia-smi: {line.strip()}"
    if code and not (count or out.strip()):
        words = err.strip().splitlines()
        yield f"nvidia-smi failed with exit code {code}" + (f": {words[0]}" if words else "")


def _gpu(nvml: Any, index: int, versions: dict[str, str]) -> Iterator[Found]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        whole = _read(nvml, handle, index, versions)
    except nvml.NVMLError as error:
        is_lost = error.value == nvml.NVML_ERROR_GPU_IS_LOST
        yield Device(kind="cuda", index=index, problem=_words(error), is_faulty=is_lost, **versions)  # type: ignore[arg-type]
        yield f"GPU {index}: {_words(error)}"
        return
    if whole.problem:
        yield f"GPU {index} ({whole.model}): {whole.problem}"
    if not _has_slices(nvml, handle):
        yield whole
        return
    slices = list(_slices(nvml, handle, whole))
    yield from slices
    if not slices:
        yield f"GPU {index} ({whole.model}) is in MIG mode but has no slices"


def _read(nvml: Any, handle: Any, index: int, versions: dict[str, str]) -> Device:
    pci = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
    minor = _try(nvml, lambda: nvml.nvmlDeviceGetMinorNumber(handle), None)
    problem, is_faulty = _fault(nvml, handle)
    return Device(
        kind="cuda",
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        minor=None if minor is None else int(minor),
        pci=_address(pci),
        model=_text(nvml.nvmlDeviceGetName(handle)),
        memory=_memory(nvml, handle),
        problem=problem,
        is_faulty=is_faulty,
        driver=versions["driver"],
        runtime=versions["runtime"],
    )


def _has_slices(nvml: Any, handle: Any) -> bool:
    return bool(_try(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0], 0))


def _slices(nvml: Any, handle: Any, whole: Device) -> Iterator[Device]:
    for part in range(int(_try(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle), 0))):
        with suppress(nvml.NVMLError):  # NVML_ERROR_NOT_FOUND: this place is empty
            piece = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, part)
            yield Device(
                kind="cuda",
                index=whole.index,
                uuid=_text(nvml.nvmlDeviceGetUUID(piece)),
                minor=whole.minor,
                pci=whole.pci,
                model=_text(_try(nvml, partial(nvml.nvmlDeviceGetName, piece), whole.model)),
                memory=_memory(nvml, piece),
                parent=whole.uuid,
                part=part,
                driver=whole.driver,
                runtime=whole.runtime,
                problem=whole.problem,
                is_faulty=whole.is_faulty,
            )


def _memory(nvml: Any, handle: Any) -> int | None:
    """Return the bytes of a device's memory; None on chips whose memory belongs to the whole machine."""
    found = _try(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total, None)
    return int(found) or None if found is not None else None


def _fault(nvml: Any, handle: Any) -> tuple[str, bool]:
    """Return what is wrong with a GPU's memory, and whether jobs that run on it are affected."""
    uncorrected, volatile = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    errors = int(_try(nvml, lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, volatile), 0))
    if errors:
        return f"{errors} uncorrectable ECC error{'s' if errors != 1 else ''} since the last reset", True
    *_, pending, failed = _try(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle), (0, 0, 0, 0))
    if failed:
        return "broken rows of its memory could not be replaced: row remapping has failed", False
    if pending or _try(nvml, lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle), 0):
        return "broken memory is replaced at its next reset: nvidia-smi --gpu-reset, or reboot", False
    return "", False


def _try(nvml: Any, ask: Callable[[], Any], otherwise: Any) -> Any:
    """Return the answer, or `otherwise` if this device or driver does not support the question. A lost GPU raises."""
    try:
        return ask()
    except AttributeError:  # an nvidia-ml-py without this question
        return otherwise
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return otherwise


def _words(error: Any) -> str:
    return str(error).rstrip(".")


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _address(bus_id: str) -> str:
    """Return a PCI address as sysfs writes it: NVML's domain has eight digits, and may be in capitals."""
    domain, colon, rest = bus_id.partition(":")
    return f"{domain[-4:]}{colon}{rest}".lower()
