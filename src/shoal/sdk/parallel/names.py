"""Names of a model's weights, with and without the parts that torch.compile adds to them. Standard library only.

`torch.compile(model)` is a module with the original inside it as `_orig_mod`, and so is a compiled block. Checkpoints have
the names of the plain model; those written before that was so have the others, and are read too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_COMPILED = "_orig_mod"


def plain_name(name: str) -> str:
    """Return the name of a weight as in the model that was not compiled."""
    return ".".join(part for part in name.split(".") if part != _COMPILED) if _COMPILED in name else name


def plain_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict with the names of the plain model; unchanged if two names would become the same."""
    found = {plain_name(name): value for name, value in state.items()}
    return found if len(found) == len(state) else dict(state)


def fitted(state: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return a saved state dict with the names that the model to load has, whichever of the two was compiled."""
    own = set(names)
    wanted = {plain_name(name): name for name in own}

    def fit(name: str) -> str:
        plain = plain_name(name)
        # Older checkpoints of a compiled DistributedDataParallel have its name for the model inside, too.
        return name if name in own else wanted.get(plain) or wanted.get(plain.removeprefix("module.")) or name

    return {fit(name): value for name, value in state.items()}


def compiled_from(model: Any) -> Any:
    """Return the module that `torch.compile` was given; None if this model is not compiled as a whole."""
    return getattr(model, _COMPILED, None)
