"""Patches that create process groups with gloo instead of nccl, and let wrappers work without devices."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .callers import for_user


def patch(torch: Any) -> None:
    parallel = torch.nn.parallel.DistributedDataParallel
    make = parallel.__init__

    @functools.wraps(make)
    def init(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        make(self, module, None, None, *args, **kwargs)

    parallel.__init__ = init
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available():
        return
    core = dist.distributed_c10d
    _replace((dist, core), "init_process_group", _on_gloo(core.init_process_group, first=True))
    _replace((dist, core), "new_group", _on_gloo(core.new_group))
    _replace((dist, core), "barrier", _without_devices(core.barrier))
    _replace((dist, core), "all_reduce", _averaging(core.all_reduce, core))
    _replace((dist, core), "is_nccl_available", for_user(True, core.is_nccl_available))
    _patch_mesh(dist)


def _patch_mesh(dist: Any) -> None:
    mesh = sys.modules.get("torch.distributed.device_mesh")
    if mesh is None:
        return
    _replace((dist, mesh), "init_device_mesh", _on_cpu(mesh.init_device_mesh, at=0))
    mesh.DeviceMesh.__init__ = _on_cpu(mesh.DeviceMesh.__init__, at=1)


def _replace(owners: tuple[Any, ...], name: str, function: Any) -> None:
    for owner in owners:
        if hasattr(owner, name):
            setattr(owner, name, function)


def _on_gloo(function: Callable[..., Any], *, first: bool = False) -> Any:
    """Return `function` with gloo instead of nccl and without a device.

    `first`: the backend may be the first argument.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if first and args and _is_nccl(args[0]):
            args = ("gloo", *args[1:])
        if _is_nccl(kwargs.get("backend")):
            kwargs["backend"] = "gloo"
        kwargs.pop("device_id", None)
        return function(*args, **kwargs)

    return call


def _is_nccl(backend: Any) -> bool:
    return isinstance(backend, str) and "nccl" in backend.lower()


def _without_devices(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return function(group=group, async_op=async_op)

    return barrier


def _averaging(function: Callable[..., Any], core: Any) -> Any:
    """Return an all_reduce that sums and divides for AVG, which gloo does not have."""

    @functools.wraps(function)
    def all_reduce(tensor: Any, op: Any = core.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        if op != core.ReduceOp.AVG:
            return function(tensor, op, group, async_op)
        work = function(tensor, core.ReduceOp.SUM, group, True)
        if work is not None:
            work.wait()
            tensor.div_(core.get_world_size(group))
        return work if async_op else None

    return all_reduce


def _on_cpu(function: Callable[..., Any], *, at: int) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > at and args[at] == "cuda":
            args = (*args[:at], "cpu", *args[at + 1 :])
        if kwargs.get("device_type") == "cuda":
            kwargs["device_type"] = "cpu"
        return function(*args, **kwargs)

    return call
