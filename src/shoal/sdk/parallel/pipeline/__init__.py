"""Pipeline parallelism: consecutive blocks of one model on consecutive processes, under the script's own loop.

torch.distributed.pipelining needs the loss inside its schedule and one forward-and-backward call per step; it cannot run
an unchanged script that computes `loss = f(model(x), y)` and calls `loss.backward()` itself.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.sdk.parallel.base import Parallel, State, move_state
from shoal.sdk.parallel.blocks import partition, pipeline_blocks, size
from shoal.sdk.parallel.empty import is_empty
from shoal.sdk.parallel.names import compiled_from
from shoal.sdk.parallel.pipeline.gradients import SHARED, Gradients
from shoal.sdk.parallel.pipeline.runtime import Runtime
from shoal.sdk.parallel.pipeline.state import Ownership, collect, deal_out
from shoal.sdk.parallel.pipeline.wire import Wire
from shoal.sdk.parallel.placed import moved, refuse_placed
from shoal.sdk.parallel.plan import Plan
from shoal.sdk.parallel.start import same_start

logger = logging.getLogger(__name__)

RUNTIME = "_shoal_runtime"
INDEX = "_shoal_block"


class PipelineParallel(Parallel):
    name = "pipeline"

    def __init__(self, device: torch.device, plan: Plan, rank: int) -> None:
        super().__init__(device)
        self._plan, self._rank = plan, rank
        self.data_rank, self._stage = divmod(rank, plan.stages)
        self.data_world = plan.replicas
        kind = device.type if device.type in ("cuda", "xpu") else "cpu"
        mesh = init_device_mesh(kind, (plan.replicas, plan.stages), mesh_dim_names=("ddp", "pipeline"))
        self._replicas = mesh.get_group("ddp") if plan.replicas > 1 else None
        ranks = range(self.data_rank * plan.stages, (self.data_rank + 1) * plan.stages)
        self._wire = Wire(ranks, self._stage, device, mesh.get_group("pipeline"), self._object_groups())

    def wrap(self, model: nn.Module) -> nn.Module:
        if hasattr(model, RUNTIME):
            return model
        refuse_placed(model, self.name)
        if compiled_from(model) is not None:
            raise UsageError(
                "A model that was compiled as a whole cannot be cut into a pipeline.",
                hint="Compile its blocks instead: block.compile().",
            )
        if is_empty(model):
            raise UsageError(
                "A model that was made with shoal.empty_model() cannot be cut into a pipeline yet.",
                hint='Make it as usual, or use parallel="fsdp".',
            )
        blocks = pipeline_blocks(model, self._plan.stages)
        if not blocks:
            raise UsageError(
                f"No list of at least {self._plan.stages} blocks was found in {type(model).__name__} to cut a pipeline at.",
                hint='Put the blocks into an nn.ModuleList or nn.Sequential, use fewer stages, or parallel="fsdp".',
            )
        same_start(model)
        ranges = partition([size(block) for block in blocks], self._plan.stages)
        stages = [stage for stage, blocks_of_stage in enumerate(ranges) for _ in blocks_of_stage]
        owners = _owners(model, blocks, stages)
        _free(model, owners, self._stage)
        moved(model, self.device)
        own = ranges[self._stage]
        logger.info("pipeline: stage %d of %d has blocks %d to %d", self._stage, len(ranges), own[0], own[-1])
        self._instrument(model, blocks, stages, owners, own)
        return model

    def adopt(self, model: nn.Module, optimizer: Optimizer) -> None:
        own = self._ownership(model)
        for param in list(optimizer.state):
            if own.of_param(param) not in (SHARED, self._stage):
                del optimizer.state[param]
        move_state(optimizer)

    def sync_gradients(self, model: nn.Module, on: bool) -> None:
        runtime = getattr(model, RUNTIME, None)
        if isinstance(runtime, Runtime):
            runtime.gradients.on = on

    def full_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        if self.data_rank > 0:
            return None
        state: tuple[State, list[State]] | None = collect(self._wire, self._ownership(model), model, optimizers)
        return state

    def load(
        self, model: nn.Module, optimizers: Sequence[Optimizer], model_state: State, optimizer_states: Sequence[State]
    ) -> None:
        deal_out(self._wire, self._ownership(model), model, optimizers, model_state, optimizer_states)

    def _ownership(self, model: nn.Module) -> Ownership:
        found: Ownership = getattr(model, RUNTIME).ownership
        return found

    def _object_groups(self) -> dist.ProcessGroup:
        """Return the gloo group of this pipeline. Every rank must create the groups of all pipelines, in the same order."""
        stages = self._plan.stages
        starts = [replica * stages for replica in range(self._plan.replicas)]
        groups = [dist.new_group(list(range(start, start + stages)), backend="gloo") for start in starts]
        mine: dist.ProcessGroup = groups[self.data_rank]
        return mine

    def _instrument(
        self, model: nn.Module, blocks: list[nn.Module], stages: list[int], owners: dict[int, int], own: range
    ) -> None:
        params = list(model.parameters())
        gradients = Gradients(
            params, [owners[id(param)] for param in params], self._stage, self._wire.group, self._replicas
        )
        runtime = Runtime(self._wire, own, self._plan.num_microbatches, gradients, shifted=_predicts_next(model))
        names = {id(module): name for name, module in model.named_modules()}
        prefixes = {names[id(block)]: stage for block, stage in zip(blocks, stages, strict=True)}
        runtime.ownership = Ownership(model, prefixes, owners)
        for index, block in enumerate(blocks):
            object.__setattr__(block, INDEX, index)
            _become(block, runtime, _as_block(block))
        _become(model, runtime, _as_model(model))


def _owners(model: nn.Module, blocks: list[nn.Module], stages: list[int]) -> dict[int, int]:
    """Return id of parameter → the only stage that uses it, or SHARED."""
    users: dict[int, set[int]] = {}
    for block, stage in zip(blocks, stages, strict=True):
        for param in block.parameters():
            users.setdefault(id(param), set()).add(stage)
    inside = {id(module) for block in blocks for module in block.modules()}
    for module in model.modules():
        if id(module) not in inside:
            for param in module.parameters(recurse=False):
                users.setdefault(id(param), set()).add(SHARED)
    return {key: stages.pop() if len(stages) == 1 else SHARED for key, stages in users.items()}


def _free(model: nn.Module, owners: dict[int, int], stage: int) -> None:
    """Free the weights of other stages. The Parameter objects stay, with one element each: see Gradients."""
    for param in model.parameters():
        if owners[id(param)] not in (SHARED, stage):
            param.data = torch.zeros((1,) * param.dim(), dtype=torch.float32, device=param.device)
            param.grad = None


def _become(module: nn.Module, runtime: Runtime, members: dict[str, Any]) -> None:
    """Replace members of the class of this one module. Its name, attributes and base classes stay the same."""
    old = type(module)
    object.__setattr__(module, RUNTIME, runtime)
    about = {"__module__": old.__module__, "__qualname__": old.__qualname__, "__doc__": old.__doc__}
    module.__class__ = type(old.__name__, (old,), {**about, **members})


def _as_block(block: nn.Module) -> dict[str, Any]:
    """Return members that pass calls of a block to the runtime first.

    This is not a hook, because a block that checkpoints its activations in its own `__call__` runs hooks again during
    backward.
    """
    old = type(block)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return old.__call__(self, *args, **kwargs)

        return getattr(self, RUNTIME).at_block(getattr(self, INDEX), call, args, kwargs)

    return {"__call__": __call__}


def _as_model(model: nn.Module) -> dict[str, Any]:
    """Return members that pass the forward of the whole model to the runtime; its hooks run once per batch, as usual."""
    # Some libraries set a forward on the object, which hides that of the class.
    inner = vars(model).pop("forward", None)
    plain = inner if inner is not None else type(model).forward

    @functools.wraps(plain)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs) if inner is not None else plain(self, *args, **kwargs)

        if getattr(getattr(self, "config", None), "use_cache", False):
            # A cache of keys and values would need the blocks of the other stages.
            kwargs.setdefault("use_cache", False)
        flags = (self.training, tuple(param.requires_grad for param in self.parameters()))
        return getattr(self, RUNTIME).forward(call, flags, args, kwargs)

    return {"forward": forward}


def _predicts_next(model: nn.Module) -> bool:
    """Check whether the loss of a Hugging Face model compares each token with the label after it."""
    name = type(model).__name__
    return getattr(model, "loss_type", None) == "ForCausalLM" or name.endswith(("CausalLM", "LMHeadModel"))
