"""Fully sharded data parallelism: each process keeps a slice of every parameter, gradient and optimizer state (FSDP2).

With replicas in the plan, the slices of one copy are inside a group and the copies average their gradients (HSDP).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from shoal.sdk.parallel.base import Parallel, State
from shoal.sdk.parallel.blocks import block_lists, size
from shoal.sdk.parallel.empty import Filling, is_empty
from shoal.sdk.parallel.names import plain_names
from shoal.sdk.parallel.placed import refuse_placed
from shoal.sdk.parallel.plan import Plan
from shoal.sdk.parallel.resharding import load_model_shards, read_optimizer_shards, tied_names
from shoal.sdk.parallel.start import from_first, same_start
from shoal.sdk.parallel.tuning import tune_blocks

if TYPE_CHECKING:
    from shoal.sdk.saving.shards import Shards

UNIT_PARAMS = 1_000_000
"""Minimum number of parameters of a module that is gathered by itself, in models without repeated blocks."""


class ShardedParallel(Parallel):
    name = "fsdp"
    is_sharded = True

    def __init__(self, device: torch.device, plan: Plan, rank: int) -> None:
        super().__init__(device)
        self.data_rank, self.data_world, self._rank = rank, plan.replicas * plan.shards, rank
        kind = device.type if device.type in ("cuda", "xpu") else "cpu"
        if plan.replicas > 1:
            self._mesh = init_device_mesh(kind, (plan.replicas, plan.shards), mesh_dim_names=("ddp", "fsdp"))
        else:
            self._mesh = init_device_mesh(kind, (plan.shards,), mesh_dim_names=("fsdp",))

    def wrap(self, model: nn.Module) -> nn.Module:
        if isinstance(model, FSDPModule):
            return model
        refuse_placed(model, self.name)
        same_start(model)
        # Moving the model first would need memory for all of it; fully_shard moves it slice by slice.
        before = dict(model.named_parameters(remove_duplicate=False))
        filling = Filling(model, from_first(torch.initial_seed())) if is_empty(model) else None
        tune_blocks(model, self.tuning)
        policy = MixedPrecisionPolicy()
        if self.tuning.precision == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        units = list(_units(model))
        inside = {id(module) for unit in units for module in unit.modules()}
        for unit in units:
            if filling is not None:
                filling.fill(unit.modules())
            fully_shard(unit, mesh=self._mesh, mp_policy=policy)
        if filling is not None:
            filling.fill(module for module in model.modules() if id(module) not in inside)
        fully_shard(model, mesh=self._mesh, mp_policy=policy)
        if filling is not None:
            filling.read()
        self.note_swapped(before, model)
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
        # plain_names copies: the function replaces the values of its argument by this rank's slices.
        set_model_state_dict(
            model, plain_names(model_state), options=StateDictOptions(full_state_dict=True, strict=True)
        )
        for optimizer, state in zip(optimizers, optimizer_states, strict=True):
            optimizer.load_state_dict(_slice_state(optimizer, state))

    def sharded_state(
        self, model: nn.Module, optimizers: Sequence[Optimizer]
    ) -> tuple[State, list[State], dict[str, str]] | None:
        return plain_names(model.state_dict()), [optimizer.state_dict() for optimizer in optimizers], tied_names(model)

    def load_shards(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        model_state: State,
        optimizer_states: Sequence[State],
        shards: Shards,
    ) -> None:
        load_model_shards(model, model_state, shards)
        for optimizer, state in zip(optimizers, optimizer_states, strict=True):
            optimizer.load_state_dict(read_optimizer_shards(optimizer, state, shards))

    def _gather(self, value: Any) -> Any:
        """Return a nest with whole tensors on the CPU. Only rank 0 keeps them, but all ranks must take part."""
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
    """Yield the modules to gather one at a time: the repeated blocks, else large modules."""
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
    """Return the optimizer state of a whole parameter, sliced like the parameter."""
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
