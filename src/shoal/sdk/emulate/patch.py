"""Patch that is applied after `import torch`: every request for CUDA gets the CPU."""

from __future__ import annotations

import os
import sys
from typing import Any

from . import accelerator, cuda, devices, distributed, idle

_TOLD = "SHOAL_EMULATE_CUDA_TOLD"


def apply(torch: Any) -> None:
    """Patch a torch that was just imported; print a notice once for all processes of a job."""
    asked, device = torch.device("cuda"), cuda.Device()
    devices.patch(torch)
    cuda.patch(torch, device)
    accelerator.patch(torch, device, asked)
    distributed.patch(torch)
    idle.watch(torch)
    # Without a device, accelerate and Hugging Face's Trainer would train every worker separately.
    os.environ["ACCELERATE_USE_CPU"] = "true"
    if os.environ.get("RANK", "0") == "0" and _TOLD not in os.environ:
        sys.stderr.write("[shoal] CUDA is emulated: cuda is the CPU and nccl is gloo. For debugging, not for speed.\n")
        sys.stderr.flush()
    os.environ[_TOLD] = "1"
