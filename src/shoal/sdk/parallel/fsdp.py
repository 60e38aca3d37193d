"""Fully sharded data parallelism: each process keeps a slice of every parameter, gradient and optimizer state (FSDP2).

With replicas in the plan, the slices of one copy are inside a group and the copies average their gradients (HSDP). Tensor
and context parallelism divide the work on one copy among neighbouring processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from shoal.core.errors import InvalidSpec
from shoal.sdk.parallel.base import Parallel, State
from shoal.sdk.parallel.blocks import block_lists, size
from shoal.sdk.parallel.context import ContextParallel
from shoal.sdk.parallel.empty import Filling, is_empty
from shoal.sdk.parallel.names import plain_names
from shoal.sdk.parallel.placed import refuse_placed
from shoal.sdk.parallel.plan import Plan
from shoal.sdk.parallel.resharding import load_model_shards, read_optimizer_shards, tied_names
from shoal.sdk.parallel.start import from_first, same_start
from shoal.sdk.parallel.tensor import TensorParallel
from shoal.sdk.parallel.tensor_plan import OwnPlan, make_plan
from shoal.sdk.parallel.tuning import tune_blocks
from shoal.sdk.ranks.group import object_group
from shoal.sdk.saving.rng import rng_state, set_rng_state

if TYPE_CHECKING:
    from shoal.sdk.saving.shards import Shards

WRAPPED = "_shoal_sharded"
UNIT_PARAMS = 1_000_000
"""Minimum number of parameters of a module that is gathered by itself, in models without repeated blocks."""


class ShardedParallel(Parallel):
    """Shards in any combination with replicas, tensor parallelism and context parallelism.

    Args:
        device: Device of this process.
        plan: Sizes of the mesh.
        rank: Rank of this process.
        own_plan: Function that returns the plan of tensor parallelism for a model; by default it is found.
    """

    name = "fsdp"
    is_sharded = True

    def __init__(self, device: torch.device, plan: Plan, rank: int, own_plan: OwnPlan | None = None) -> None:
        super().__init__(device)
        self._rank, self._own_plan = rank, own_plan
        self.data_rank, self.data_world = rank // plan.together, plan.replicas * plan.shards
        self.random_rank = rank - rank % plan.together
        self._is_together = plan.together > 1
        kind = device.type if device.type in ("cuda", "xpu") else "cpu"
        # The processes that share sequences also share the storage of the parameters, and average gradients.
        sizes = {"ddp": plan.replicas, "fsdp": plan.shards * plan.sequence, "tp": plan.tensor}
        used = {axis: size for axis, size in sizes.items() if size > 1 or (axis == "fsdp" and plan.tensor == 1)}
        if plan.replicas > 1:
            used = {"ddp": plan.replicas, "fsdp": sizes["fsdp"], **used}
        self.name = "fsdp" if plan.shards > 1 or not self._is_together else "cp" if plan.sequence > 1 else "tp"
        mesh = init_device_mesh(kind, tuple(used.values()), mesh_dim_names=tuple(used))
        if len(used) > 1:
            mesh._flatten("all")  # norms over all of it are then one exchange
        over = tuple(axis for axis in ("ddp", "fsdp") if axis in used)
        self._mesh = None if not over else mesh if len(over) == len(used) else mesh[over]
        self._tensor = mesh["tp"] if plan.tensor > 1 else None
        self._sequence: dist.ProcessGroup | None = None
        if plan.sequence > 1:
            shape = (plan.replicas * plan.shards, plan.sequence, plan.tensor)
            self._sequence = init_device_mesh(kind, shape, mesh_dim_names=("data", "cp", "tp")).get_group("cp")

    def wrap(self, model: nn.Module) -> nn.Module:
        if isinstance(model, FSDPModule) or hasattr(model, WRAPPED):
            return model
        refuse_placed(model, self.name)
        self._refuse()
        same_start(model)
        # Moving the model first would need memory for all of it; fully_shard moves it slice by slice.
        before = dict(model.named_parameters(remove_duplicate=False))
        filling = Filling(model, from_first(torch.initial_seed())) if is_empty(model) else None
        units = list(_units(model))
        divided = self._divide(model, units)
        if self._sequence is not None:
            ContextParallel(self._sequence, model)
        tune_blocks(model, self.tuning)
        inside = {id(module) for unit in units for module in unit.modules()}
        rest = [module for module in model.modules() if id(module) not in inside]
        for unit in [*units, model]:
            modules = list(unit.modules()) if unit is not model else rest
            if filling is not None:
                filling.fill(modules)
            if divided is not None:
                divided.divide(modules, self.device)
            self._shard(unit)
        if self._mesh is None:
            model.to(self.device)  # buffers
        if filling is not None:
            filling.read()
        self.note_swapped(before, model)
        object.__setattr__(model, WRAPPED, True)
        if self._is_together:
            self._same_random_numbers()
        return model

    def _refuse(self) -> None:
        if self.tuning.compile and self._is_together:
            raise InvalidSpec(
                f"compile= is not supported with {'tp' if self._tensor is not None else 'cp'} in the mesh yet.",
                hint="Leave compile= out, or use ddp and fsdp only.",
            )
        if self.tuning.precision != "fp32" and self._mesh is None:
            raise InvalidSpec("precision= needs fsdp in the mesh.", hint="Add fsdp, or use torch.autocast in the loop.")

    def _divide(self, model: nn.Module, units: Sequence[nn.Module]) -> TensorParallel | None:
        """Prepare the division of matrices; the parameters follow one unit at a time."""
        if self._tensor is None:
            return None
        plan = make_plan(model, self._tensor.size(), self._own_plan)
        divided = TensorParallel(self._tensor, plan, model)
        divided.install(model, units)
        return divided

    def _shard(self, unit: nn.Module) -> None:
        if self._mesh is None:
            return
        policy = MixedPrecisionPolicy()
        if self.tuning.precision == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        fully_shard(unit, mesh=self._mesh, mp_policy=policy)

    def _same_random_numbers(self) -> None:
        """Let processes that compute the same values draw the same numbers, as dropout does. Collective."""
        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, rng_state(), group=object_group())
        set_rng_state(states[self.random_rank])

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
        weights = self._gather(plain_names(model.state_dict()))
        states = [self._gather(optimizer.state_dict()) for optimizer in optimizers]
        return (weights, states) if self._rank == 0 else None

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
