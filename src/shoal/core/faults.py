"""Known error texts of torch, NCCL, gloo and CUDA: is the machine or the network at fault, or the job itself? Pure.

The agent uses the table to find the lines of an error message that matter; the server uses it to decide on a restart.
"""

from __future__ import annotations

import functools
import re
from enum import StrEnum

from shoal.core.device_promise import ELSEWHERE


class Fault(StrEnum):
    """Part that is broken, by an error text."""

    JOB = "job"
    """The job itself: the same error would come back anywhere."""
    NETWORK = "network"
    """A connection, a rendezvous or a peer: possibly the consequence of a failure elsewhere in the gang."""
    DEVICE = "device"
    """One accelerator."""
    MACHINE = "machine"
    """A driver, or accelerators that the machine no longer shows."""

    @property
    def is_infrastructure(self) -> bool:
        return self is not Fault.JOB


# The first kind that matches wins. JOB comes first: NCCL and CUDA report out-of-memory and wrong usage in the same
# block as their generic "unhandled cuda error".
_KINDS: tuple[tuple[Fault, str], ...] = (
    (
        Fault.JOB,
        r"out of (?:shared )?memory|outofmemoryerror|cannot allocate memory|device-side assert triggered"
        r"|illegal memory access|invalid device ordinal|duplicate gpu detected|ncclinvalidusage|ncclinvalidargument"
        r"|not compiled with cuda|no space left on device",
    ),
    (
        Fault.DEVICE,
        r"\becc error|eccnotcorrectable|uncorrectable nvlink error|unspecified launch failure|\bxid\b"
        r"|fallen off the bus|\bgpu is lost|launch timed out and was terminated|ncclunhandledcudaerror"
        r"|unhandled cuda error|cuda error: unknown error|hardware stack error",
    ),
    (
        Fault.MACHINE,
        rf"{ELSEWHERE}|no (?:cuda|hip|xpu) gpus are available|driver version is insufficient|driver initialization failed"
        r"|driver/library version mismatch|cuda unknown error|cuda-capable device\(s\) is/are busy or unavailable"
        r"|no cuda-capable device is detected|system not yet initialized",
    ),
    (
        Fault.NETWORK,
        r"ncclremoteerror|ncclsystemerror|ncclinternalerror|unhandled system error|nccl error|nccl communicator"
        r"|collective operation timeout|rendezvous(?:timeout|connection|closed|gracefulexit|state)?error"
        r"|dist(?:store|network)error|waiting for clients|socket timeout|wait timeout after|client socket has"
        r"|server socket has failed|store->get\(\) got error"
        r"|timed out waiting \d+ms for (?:recv|send|connect)|connection (?:reset|closed|refused|timed out)"
        r"|connect timeout|broken pipe|no route to host|network is unreachable|eaddrinuse|address already in use",
    ),
)


def classify(text: str) -> Fault | None:
    """Return the fault an error text stands for; None if it is not in the table."""
    return next((fault for fault, pattern in _table() if pattern.search(text)), None)


@functools.cache
def _table() -> tuple[tuple[Fault, re.Pattern[str]], ...]:
    """The compiled table. An agent needs it only after a failure, so it must not delay every start."""
    return tuple((fault, re.compile(pattern, re.IGNORECASE)) for fault, pattern in _KINDS)
