"""Classify known error texts of torch, NCCL, gloo and CUDA: is the job itself at fault, or the machine or network? Pure.

The agent uses the table to find the relevant lines of an error message; the server uses it to decide on a restart.
"""

from __future__ import annotations

import functools
import re
from enum import StrEnum

from shoal.core.device_check import ELSEWHERE

FULL_DISK = "the machine's disk is full"
"""Beginning of the reason of a node that could not start for lack of disk space on its machine."""
IN_USE = "of its memory are in use before the job starts"
"""Words in the reason of a node that did not start because others use the memory of its accelerator."""
LEAST_FREE = 16 << 20
"""Free bytes below which a disk counts as full: no node is started there."""


def out_of_space(free_bytes: int) -> str:
    """Return why nothing starts on a machine whose disk has this much free, as "NAME is …" continues; empty if there is enough."""
    return f"out of disk space ({free_bytes >> 20} MiB free)" if free_bytes < LEAST_FREE else ""


class Fault(StrEnum):
    """The part that is broken, as judged by an error text."""

    JOB = "job"
    """The job itself: the same error would happen on any machine."""
    NETWORK = "network"
    """A connection, a rendezvous or a peer: possibly the consequence of a failure elsewhere in the gang."""
    DEVICE = "device"
    """One accelerator."""
    MACHINE = "machine"
    """A driver, or accelerators that the machine no longer shows."""
    DISK = "disk"
    """The machine's disk: full before the job could run."""

    @property
    def is_infrastructure(self) -> bool:
        return self is not Fault.JOB


class Remedy(StrEnum):
    """Action that helps after an error text."""

    GIVE_UP = "give up"
    """Nothing: the same error would happen again."""
    ELSEWHERE = "elsewhere"
    """Another attempt, on other devices or machines."""
    DRAIN = "drain"
    """Another attempt; and the device takes no jobs until someone has looked at it."""


# The first kind that matches wins. DISK is what Shoal itself says of a node. JOB comes next: NCCL and CUDA report
# out-of-memory and wrong usage in the same block as their generic "unhandled cuda error".
_KINDS: tuple[tuple[Fault, str], ...] = (
    (Fault.DISK, f"^{FULL_DISK}"),
    (
        Fault.JOB,
        r"out of (?:shared )?memory|outofmemoryerror|cannot allocate memory|device-side assert triggered"
        r"|illegal memory access|invalid device ordinal|duplicate gpu detected|ncclinvalidusage|ncclinvalidargument"
        r"|not compiled with cuda|no space left on device",
    ),
    (
        Fault.DEVICE,
        rf"{IN_USE}|\becc error|eccnotcorrectable|uncorrectable memory error|uncorrectable nvlink error|unspecified launch failure|\bxid\b"
        r"|fallen off the bus|\bgpu is lost|launch timed out and was terminated|ncclunhandledcudaerror"
        r"|unhandled cuda error|cuda error: unknown error|hardware stack error|hardware_exception|error_device_lost",
    ),
    (
        Fault.MACHINE,
        rf"{ELSEWHERE}|no (?:cuda|hip|xpu) gpus are available|driver version is insufficient|driver initialization failed"
        r"|driver/library version mismatch|cuda unknown error|cuda-capable device\(s\) is/are busy or unavailable"
        r"|cuda-capable devices are busy or unavailable|no cuda-capable device is detected|system not yet initialized"
        r"|driver on your system is too old|found no nvidia driver|forward compatibility was attempted"
        r"|cuda driver combination|stale file handle|transport endpoint is not connected",
    ),
    (
        Fault.NETWORK,
        r"ncclremoteerror|ncclsystemerror|ncclinternalerror|unhandled system error|nccl error|nccl communicator"
        r"|collective operation timeout|rendezvous(?:timeout|connection|closed|gracefulexit|state)?error"
        r"|dist(?:store|network)error|waiting for clients|socket timeout|wait timeout after|client socket has"
        r"|server socket has failed|store->get\(\) got error"
        r"|timed out waiting \d+ms for (?:recv|send|connect)|connection (?:reset|closed|refused|timed out)"
        r"|got completion (?:from peer .*)?with status=|connectfullmesh failed|monitoredbarrier"
        r"|connect timeout|broken pipe|no route to host|network is unreachable|eaddrinuse|address already in use",
    ),
)


XIDS_FATAL = {
    48: "uncorrectable ECC error",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained ECC error",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor has failed",
    140: "unrecovered ECC error",
}
"""Error reports of NVIDIA's driver after which nothing that runs on the GPU can continue."""
XIDS_WORN = {
    63: "a row of its memory is to be replaced",
    64: "a row of its memory cannot be replaced",
    94: "contained ECC error",
}
"""Error reports after which a GPU should take no new jobs, while those that run may continue. Other reports may follow from errors
of programs (13, 31, 43, 45), or are not clear enough."""
_HARDWARE = (
    rf"{IN_USE}|"
    r"\becc error|eccnotcorrectable|uncorrectable nvlink|fallen off the bus|gpu is lost|hardware stack error"
    rf"|uncorrectable memory error|\bxid\b[^\n]{{0,30}}[: ](?:{'|'.join(map(str, XIDS_FATAL | XIDS_WORN))})\b"
)
"""Errors that the job's script cannot cause. Others of Fault.DEVICE, such as a launch failure, may be the job's own fault."""


def remedy(text: str) -> Remedy:
    """Return what helps after an error text. A text that no pattern matches is the job's own error."""
    fault = classify(text)
    if fault is None or not fault.is_infrastructure:
        return Remedy.GIVE_UP
    is_hardware = fault is Fault.DEVICE and re.search(_HARDWARE, text, re.IGNORECASE)
    return Remedy.DRAIN if is_hardware else Remedy.ELSEWHERE


def is_before_start(text: str) -> bool:
    """Return whether a node could not start because of its machine: a full disk, or memory of a device that others use."""
    return classify(text) is Fault.DISK or IN_USE in text


def classify(text: str) -> Fault | None:
    """Return the fault that an error text indicates; None if no pattern of the table matches."""
    return next((fault for fault, pattern in _table() if pattern.search(text)), None)


@functools.cache
def _table() -> tuple[tuple[Fault, re.Pattern[str]], ...]:
    """Return the table with compiled patterns. Compiled on first use, because agents need it only after a failure."""
    return tuple((fault, re.compile(pattern, re.IGNORECASE)) for fault, pattern in _KINDS)
