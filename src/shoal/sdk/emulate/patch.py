"""What `import torch` is followed by: every way to ask for CUDA leads to the CPU."""

from __future__ import annotations

import os
import sys
from typing import Any

from . import accelerator, cuda, devices, distributed

_TOLD = "SHOAL_EMULATE_CUDA_TOLD"


def apply(torch: Any) -> None:
    """Patch a torch just imported; tell so once for all processes of a job."""
    asked, device = torch.device("cuda"), cuda.Device()
    devices.patch(torch)
    cuda.patch(torch, device)
    accelerator.patch(torch, device, asked)
    distributed.patch(torch)
    # Without a device, accelerate and Hugging Face's Trainer would leave each worker to itself.
    os.environ["ACCELERATE_USE_CPU"] = "true"
    if os.environ.get("RANK", "0") == "0" and _TOLD not in os.environ:
        sys.stderr.write("[shoal] CUDA is emulated: cuda is the CPU and nccl is gloo. For debugging, not for speed.\n")
        sys.stderr.flush()
    os.environ[_TOLD] = "1"
