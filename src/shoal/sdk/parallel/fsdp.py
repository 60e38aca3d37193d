"""Fully sharded: each process keeps a slice of every parameter, gradient and optimizer state (FSDP2).

With replicas in the plan the slices of one copy lie inside a group and the copies average their gradients (HSDP).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from shoal.sdk.parallel.base import Parallel, State
from shoal.sdk.parallel.blocks import block_lists, size
from shoal.sdk.parallel.plan import Plan
from shoal.sdk.parallel.start import same_start

UNIT_PARAMS = 1_000_000
"""Without repeated blocks: modules with at least this many parameters are gathered one at a time."""


class ShardedParallel(Parallel):
    name = "fsdp"

    def __init__(self, device: torch.device, plan: Plan, rank: int) -> None:
        super().__init__(device)
        self.data_rank, self.data_world, self._rank = rank, plan.replicas * plan.shards, rank
        kind = device.type if device.type in ("cuda", "xpu") else "cpu"
        if plan.replicas > 1:
            self._mesh = init_device_mesh(kind, (plan.replicas, plan.shards), mesh_dim_names=("ddp", "fsdp"))
        else:
            self._mesh = init_device_mesh(kind, (plan.shards,), mesh_dim_names=("fsdp",))
        self._swapped: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}

    def wrap(self, model: nn.Module) -> nn.Module:
        if isinstance(model, FSDPModule):
            return model
        same_start(model)
        # Moving first would need room for the whole model; fully_shard moves slice by slice.
        before = dict(model.named_parameters(remove_duplicate=False))
        for unit in _units(model):
            fully_shard(unit, mesh=self._mesh)
        fully_shard(model, mesh=self._mesh)
        for name, new in model.named_parameters(remove_duplicate=False):
            old = before[name]
            self._swapped[id(old)] = (weakref.ref(old), new)
        return model

    def adopt(self, model: nn.Module, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            group["params"] = [self._new(param) for param in group["params"]]
        for old, state in list(optimizer.state.items()):
            new = self._new(old)
            if new is not old:
                del optimizer.state[old]
                optimizer.state[new] = {key: _slice_like(new, value) for key, value in state.items()}

    def sync_gradients(self, model: nn.Module, on: bool) -> None:
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(on)

    def full_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(model, options=options)
        states = [self._gather(optimizer.state_dict()) for optimizer in optimizers]
        return (dict(weights), states) if self._rank == 0 else None

    def load(
        self, model: nn.Module, optimizers: Sequence[Optimizer], model_state: State, optimizer_states: Sequence[State]
    ) -> None:
        # It fills the dict it is given with this rank's slices.
        set_model_state_dict(model, dict(model_state), options=StateDictOptions(full_state_dict=True, strict=True))
        for optimizer, state in zip(optimizers, optimizer_states, strict=True):
            optimizer.load_state_dict(_slice_state(optimizer, state))

    def _new(self, param: torch.Tensor) -> torch.Tensor:
        old, new = self._swapped.get(id(param), (None, None))
        return new if new is not None and old is not None and old() is param else param

    def _gather(self, value: Any) -> Any:
        """A nest with whole tensors on the CPU; only rank 0 keeps them, but all must take part."""
        if isinstance(value, DTensor):
            whole = value.full_tensor().detach()
            return whole.to("cpu", copy=True) if self._rank == 0 else None
        if isinstance(value, torch.Tensor):
            return value.detach().to("cpu", copy=True)
        if isinstance(value, dict):
            return {key: self._gather(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._gather(item) for item in value)
        return value


def _units(model: nn.Module) -> Iterator[nn.Module]:
    """Modules to gather one at a time: the repeated blocks, or large modules where there are none."""
    units = [block for blocks in block_lists(model) for block in blocks]
    if not units:
        units = [module for module in model.modules() if module is not model and size(module) >= UNIT_PARAMS]
        below = {id(inner) for unit in units for inner in unit.modules() if inner is not unit}
        units = [unit for unit in units if id(unit) not in below]
    owners: dict[int, int] = {}
    for module in model.modules():
        for param in module._parameters.values():
            if param is not None:
                owners[id(param)] = owners.get(id(param), 0) + 1
    for unit in units:
        inside: dict[int, int] = {}
        for module in unit.modules():
            for param in module._parameters.values():
                if param is not None:
                    inside[id(param)] = inside.get(id(param), 0) + 1
        # A parameter that is also used outside the unit (tied) must be gathered together with its other users.
        if inside and all(owners[key] == count for key, count in inside.items()):
            yield unit


def _slice_like(param: torch.Tensor, value: Any) -> Any:
    """Optimizer state of the whole parameter, cut as the parameter is."""
    if not isinstance(param, DTensor) or not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
        return value
    if value.shape != param.shape or value.dim() == 0:
        return value
    return distribute_tensor(value.to(param.device), param.device_mesh, param.placements)


def _slice_state(optimizer: Optimizer, state: State) -> State:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    indices = [index for group in state["param_groups"] for index in group["params"]]
    if len(params) != len(indices):
        raise ValueError(f"The optimizer has {len(params)} parameters, its saved state {len(indices)}.")
    by_index = dict(zip(indices, params, strict=True))
    sliced = {
        index: {key: _slice_like(by_index[index], value) for key, value in entries.items()}
        for index, entries in state["state"].items()
    }
    return {**state, "state": sliced}
