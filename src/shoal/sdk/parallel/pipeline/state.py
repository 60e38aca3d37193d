"""Full state of a model whose blocks are on several stages: collected on the first stage, distributed again on loading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from shoal.sdk.parallel.base import State, to_cpu
from shoal.sdk.parallel.names import fitted, plain_names
from shoal.sdk.parallel.pipeline.gradients import SHARED
from shoal.sdk.parallel.pipeline.wire import Wire


class Ownership:
    """Stage that holds each parameter and buffer. Parameters keep their identity, so optimizer groups need no change."""

    def __init__(self, model: nn.Module, prefixes: dict[str, int], owners: dict[int, int]) -> None:
        self._prefixes = prefixes
        """Name of each block → its stage."""
        self._owners = owners
        """id of parameter → its stage, or SHARED."""
        self._shared = {
            name for name, param in model.named_parameters(remove_duplicate=False) if owners[id(param)] == SHARED
        }

    def of_key(self, key: str) -> int:
        """Return the stage of an entry of the model's state dict, or SHARED."""
        if key not in self._shared:
            parts = key.split(".")
            for end in range(1, len(parts)):
                stage = self._prefixes.get(".".join(parts[:end]))
                if stage is not None:
                    return stage
        return SHARED

    def of_param(self, param: torch.Tensor) -> int:
        return self._owners.get(id(param), SHARED)


def collect(wire: Wire, own: Ownership, model: nn.Module, optimizers: Sequence[Optimizer]) -> Any:
    """Return (model state, optimizer states) on the first stage, None on the others. Collective over the stages."""
    weights = model.state_dict()
    states = [optimizer.state_dict() for optimizer in optimizers]
    stages = [_stages_by_index(own, optimizer) for optimizer in optimizers]
    mine = (
        to_cpu({key: value for key, value in weights.items() if _gives(own.of_key(key), wire.stage)}),
        [
            to_cpu({index: entry for index, entry in state["state"].items() if _gives(by_index[index], wire.stage)})
            for state, by_index in zip(states, stages, strict=True)
        ],
    )
    if not wire.is_first:
        wire.send_nest(mine, 0)
        return None
    found, entries = dict(mine[0]), [dict(part) for part in mine[1]]
    for stage in range(1, wire.stages):
        theirs, their_entries = wire.receive_nest(stage)
        found.update(theirs)
        for entry, more in zip(entries, their_entries, strict=True):
            entry.update(more)
    full = [
        {**to_cpu({key: value for key, value in state.items() if key != "state"}), "state": dict(sorted(entry.items()))}
        for state, entry in zip(states, entries, strict=True)
    ]
    return plain_names({key: found[key] for key in weights}), full


def deal_out(
    wire: Wire,
    own: Ownership,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    model_state: State,
    optimizer_states: Sequence[State],
) -> None:
    """Load this stage's part of the full state."""
    keys = set(model.state_dict())
    model_state = fitted(model_state, keys)
    if keys != set(model_state):
        missing, extra = sorted(keys - set(model_state)), sorted(set(model_state) - keys)
        raise RuntimeError(f"The saved model does not fit: missing {missing[:5]}, unexpected {extra[:5]}.")
    here = {key: value for key, value in model_state.items() if own.of_key(key) in (SHARED, wire.stage)}
    model.load_state_dict(here, strict=False)
    for optimizer, state in zip(optimizers, optimizer_states, strict=True):
        params = [param for group in optimizer.param_groups for param in group["params"]]
        indices = [index for group in state["param_groups"] for index in group["params"]]
        kept = {
            index for index, param in zip(indices, params, strict=True) if own.of_param(param) in (SHARED, wire.stage)
        }
        part = {index: entry for index, entry in state["state"].items() if index in kept}
        optimizer.load_state_dict({**state, "state": part})


def _gives(owner: int, stage: int) -> bool:
    """Check whether `stage` contributes a value of `owner` to the full state; shared values come from the first stage."""
    return owner == stage or (owner == SHARED and stage == 0)


def _stages_by_index(own: Ownership, optimizer: Optimizer) -> dict[int, int]:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return {index: own.of_param(param) for index, param in enumerate(params)}
