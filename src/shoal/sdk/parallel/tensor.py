"""Tensor parallelism: every process of a group holds a part of each large matrix and computes that part of the products.

The weights are DTensors over the group; those that are not divided are copies. The modules compute with this process's
parts as plain tensors, so that the code around them need not know of it.
"""

# Why the gradients are right: all processes of a group read the same data, draw the same random numbers, and compute the same
# values outside of divided modules. A column (part of the outputs) starts from a copied input, whose gradient is summed over
# the group; a row (part of the inputs) sums its outputs, whose gradient is the same everywhere. So each process has the whole
# gradient of every copy and of its own part of every divided weight, and nothing has to be exchanged after the backward pass.

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

from shoal.sdk.parallel.tensor_plan import COLUMN, GATHER, ROW, SUMMED, is_transposed

Forward = Callable[..., Any]


class TensorParallel:
    """Divides the modules of one model among the processes of a group.

    Args:
        mesh: The dimension "tp" of the mesh.
        plan: Module name → COLUMN, ROW, GATHER, SUMMED or a style of `torch.distributed.tensor.parallel`.
        model: The model.
    """

    def __init__(self, mesh: DeviceMesh, plan: Mapping[str, Any], model: nn.Module):
        self._mesh, self._group = mesh, mesh.get_group()
        self._plan = {id(module): plan[name] for name, module in model.named_modules() if name in plan}
        self._made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    def install(self, model: nn.Module, units: Iterable[nn.Module]) -> None:
        """Let the divided modules compute their parts, and all others with plain copies of their parameters."""
        taken: set[int] = set()
        for unit in [*units, model]:
            holders = []
            for module in unit.modules():
                if id(module) in taken:
                    continue
                taken.add(id(module))
                way = self._plan.get(id(module))
                if isinstance(way, str) and way != SUMMED:
                    module.forward = _divided(module, way, self._group)
                elif way is None or way == SUMMED:
                    group = self._group if way == SUMMED else None
                    holders += [(module, name, group) for name, p in module._parameters.items() if p is not None]
                if isinstance(module, nn.TransformerEncoderLayer):
                    # Its shortcut for inference reads the weights of other modules; it is not taken if there are hooks.
                    module.register_forward_pre_hook(_nothing)
            if holders:
                unit.forward = _with_copies(unit.forward, holders)

    def divide(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        """Replace the parameters of these modules by this process's parts. Every process has the same whole ones."""
        for module in modules:
            way = self._plan.get(id(module))
            if way is not None and not isinstance(way, str):
                styles: Any = import_module("torch.distributed.tensor.parallel")
                styles.parallelize_module(module, self._mesh, way)
            for name, param in module._parameters.items():
                if param is not None and not isinstance(param, DTensor):
                    module._parameters[name] = self._part(module, name, param, way, device)

    def _part(self, module: nn.Module, name: str, param: nn.Parameter, way: Any, device: torch.device) -> nn.Parameter:
        if id(param) not in self._made:
            dim = _dim(module, name, way) if isinstance(way, str) else None
            value, number = param.detach(), self._mesh.get_local_rank()
            if dim is None:
                local = value.to(device)
            else:
                local = value.chunk(self._mesh.size(), dim)[number].to(device, copy=True).contiguous()
            made = DTensor.from_local(local, self._mesh, [Replicate() if dim is None else Shard(dim)], run_check=False)
            self._made[id(param)] = (param, nn.Parameter(made, requires_grad=param.requires_grad))
        return self._made[id(param)][1]


def _dim(module: nn.Module, name: str, way: str) -> int | None:
    """Return the dimension in which a parameter is divided; None if every process has all of it."""
    if way == SUMMED or (way == ROW and name == "bias"):
        return None
    if isinstance(module, nn.Embedding):
        return 1
    if name == "bias":
        return 0
    return int((way == ROW) != is_transposed(module))


def _divided(module: Any, way: str, group: dist.ProcessGroup) -> Forward:
    """Return the forward of a module of which this process computes a part."""

    def lookup(ids: torch.Tensor) -> torch.Tensor:
        return _joined(functional.embedding(ids, _local(module.weight), module.padding_idx), group)

    def linear(x: torch.Tensor) -> torch.Tensor:
        weight, bias = _local(module.weight), _local(module.bias)
        weight = weight.t() if is_transposed(module) else weight
        if way == ROW:
            y: torch.Tensor = _Sum.apply(functional.linear(x, weight), group)  # type: ignore[no-untyped-call]
            return y if bias is None else y + bias
        y = functional.linear(_copied(x, group), weight, bias)
        return _joined(y, group) if way == GATHER else y

    assert way in (COLUMN, ROW, GATHER)  # noqa: S101
    return lookup if isinstance(module, nn.Embedding) else linear


def _with_copies(forward: Forward, holders: list[tuple[nn.Module, str, dist.ProcessGroup | None]]) -> Forward:
    """Return a forward during which the parameters of the holders are plain tensors.

    It is inside of a recomputed forward, too: the backward pass then finds plain tensors again.
    """

    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        held: list[tuple[nn.Module, str, Any]] = []
        try:
            for module, name, group in holders:
                param: Any = module._parameters[name]
                if isinstance(param, DTensor):
                    local: Any = _local(param)
                    value: Any = local if group is None else _copied(local, group)
                    module._parameters[name] = value
                    held.append((module, name, param))
            return forward(*args, **kwargs)
        finally:
            for module, name, param in held:
                module._parameters[name] = param

    return call


def _local(param: Any) -> Any:
    return param.to_local() if isinstance(param, DTensor) else param


def _joined(y: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    joined: torch.Tensor = _Join.apply(y, group)  # type: ignore[no-untyped-call]
    return joined


def _copied(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    copied: torch.Tensor = _Copy.apply(x, group)  # type: ignore[no-untyped-call]
    return copied


def _nothing(*_: Any) -> None:
    return None


class _Copy(torch.autograd.Function):
    """Input of a divided module. Its gradient is the sum of what the processes have computed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        whole = gradient.contiguous()
        if whole.data_ptr() == gradient.data_ptr():
            whole = whole.clone()
        dist.all_reduce(whole, group=ctx.group)
        return whole, None


class _Sum(torch.autograd.Function):
    """Output that is the sum over all processes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        whole = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return gradient, None


class _Join(torch.autograd.Function):
    """Output whose last dimension is put together from the parts of all processes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.rank, ctx.width = dist.get_rank(group), x.shape[-1]
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return gradient.narrow(-1, ctx.rank * ctx.width, ctx.width).contiguous(), None
