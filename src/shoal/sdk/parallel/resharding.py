"""Load a sharded checkpoint into a model and its optimizers: each process reads only the parts that it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from shoal.sdk.parallel.names import fitted, plain_name
from shoal.sdk.saving.shards import is_marker

if TYPE_CHECKING:
    from shoal.sdk.parallel.base import State
    from shoal.sdk.saving.shards import Shards


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return the second and later names of shared parameters, with the first. The same on every rank."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        name = plain_name(name)
        if first.setdefault(id(param), name) != name:
            tied[name] = first[id(param)]
    return tied


def load_model_shards(model: nn.Module, state: State, shards: Shards) -> None:
    """Read the weights in place, nothing is held twice. Raise RuntimeError if the names do not match."""
    own = model.state_dict()
    saved = fitted(state, own)
    missing, unknown = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
    if missing or unknown:
        raise RuntimeError(f"the model has no {unknown[:3]}, the checkpoint has no {missing[:3]}")
    second = tied_names(model)
    rest: State = {}
    with torch.no_grad():
        for name, value in saved.items():
            if is_marker(value) and isinstance(own[name], torch.Tensor):
                if plain_name(name) not in second:
                    shards.fill(value, own[name])
            elif isinstance(value, torch.Tensor):
                own[name].copy_(value)
            else:
                rest[name] = value
    if rest:
        model.load_state_dict(rest, strict=False)


def read_optimizer_shards(optimizer: Optimizer, state: State, shards: Shards) -> State:
    """Return an optimizer state for `load_state_dict`, with parts that are sharded like the parameters."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    indices = [index for group in state["param_groups"] for index in group["params"]]
    if len(params) != len(indices):
        raise ValueError(f"The optimizer has {len(params)} parameters, its saved state {len(indices)}.")
    by_index = dict(zip(indices, params, strict=True))
    read = {
        index: {key: _read(by_index[index], value, shards) for key, value in entries.items()}
        for index, entries in state["state"].items()
    }
    return {**state, "state": read}


def _read(param: torch.Tensor, value: Any, shards: Shards) -> Any:
    if not is_marker(value):
        return value
    if shards.shape(value) != tuple(param.shape):
        return shards.whole(value)
    part = torch.empty_like(param, dtype=shards.dtype(value), requires_grad=False)
    shards.fill(value, part)
    return part
