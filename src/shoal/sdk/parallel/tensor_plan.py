"""Plan of tensor parallelism: which modules of a model are divided, and how. It reads the model and changes nothing.

A pair of matrices with only element-wise functions between them needs one exchange: the first computes a part of its outputs
(column), the second starts from these (row). That this is so is known of Hugging Face models by their own plan, of
`nn.TransformerEncoderLayer`, and of an `nn.Sequential`. Every other matrix is divided by its outputs, which are put together
again (gather): right in any code, with more exchanges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from shoal.core.errors import InvalidSpec, UsageError

COLUMN, ROW, GATHER, SUMMED = "column", "row", "gather", "summed"
"""SUMMED: a whole parameter inside a divided module, of whose gradient every process has a part."""
WAYS = (COLUMN, ROW, GATHER)
_ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Mish, nn.Dropout, nn.Identity)
_PAIRS = (("c_fc", "c_proj"), ("dense_h_to_4h", "dense_4h_to_h"))
"""Names of the two matrices in the MLPs of Hugging Face models that have no plan of their own."""
_THEIRS = {"colwise": COLUMN, "rowwise": ROW, "colwise_gather_output": GATHER, "colwise_rep": GATHER}

OwnPlan = Callable[[nn.Module], Mapping[str, Any]]


def make_plan(model: nn.Module, degree: int, own: OwnPlan | None = None) -> dict[str, Any]:
    """Return module name → how it is divided among `degree` processes. Modules that are not listed stay whole.

    Args:
        model: The model; it may be without memory.
        degree: Number of processes.
        own: Function that returns the plan of this model: patterns of module names with "column", "row", "gather" or a style of
            `torch.distributed.tensor.parallel`.
    """
    modules = dict(model.named_modules())
    if own is not None:
        return _own(model, own(model), modules, degree)
    plan: dict[str, Any] = {}
    tied = _tied(model)
    for group in [*_hugging_face(model, modules, degree), *_pairs(modules)]:
        fits = all(_fits(modules[name], way, degree) for name, way in group.items())
        shares = any(id(param) in tied for name in group for param in _own_params(modules[name]))
        if fits and not shares and not plan.keys() & group.keys():
            plan |= group
    for name, module in modules.items():
        if name not in plan and _fits(module, GATHER, degree) and not any(id(p) in tied for p in module.parameters()):
            plan[name] = GATHER
    if not any(way in WAYS for way in plan.values()):
        raise UsageError(
            f"{type(model).__name__} has no matrices that {degree} processes could divide among them.",
            hint="Use another size of tp, fsdp instead, or pass tp_plan= to shoal.init.",
        )
    return plan


def is_transposed(module: nn.Module) -> bool:
    """Check whether a module is a Linear whose weight has its inputs first (Hugging Face's Conv1D)."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def _fits(module: nn.Module, way: str, degree: int) -> bool:
    """Check whether a module is of a kind that can be divided this way, evenly."""
    if way == SUMMED:
        return True
    if type(module) is nn.Embedding:
        special = module.max_norm is not None or module.sparse or module.scale_grad_by_freq
        return way == GATHER and module.embedding_dim % degree == 0 and not special
    if type(module) is nn.Linear:
        inputs, outputs = module.in_features, module.out_features
    elif is_transposed(module):
        inputs, outputs = module.weight.shape  # type: ignore[misc]
    else:
        return False
    return (inputs if way == ROW else outputs) % degree == 0


def _own(model: nn.Module, given: Mapping[str, Any], modules: dict[str, nn.Module], degree: int) -> dict[str, Any]:
    plan: dict[str, Any] = {}
    for pattern, way in given.items():
        found = [name for name in modules if _matches(pattern, name)]
        if not found:
            raise InvalidSpec(f"tp_plan names {pattern!r}, but {type(model).__name__} has no such module.")
        if isinstance(way, str) and way not in WAYS:
            raise InvalidSpec(f"tp_plan has {way!r} for {pattern!r}; allowed are {', '.join(WAYS)} and torch's styles.")
        for name in found:
            if isinstance(way, str) and not _fits(modules[name], way, degree):
                kind = type(modules[name]).__name__
                raise InvalidSpec(
                    f"tp_plan: {name} ({kind}) cannot be divided as {way!r} by {degree}.",
                    hint="Linear and Embedding can, if their size is a multiple of tp; others need a style of torch.",
                )
            plan[name] = way
    return plan


def _hugging_face(model: nn.Module, modules: dict[str, nn.Module], degree: int) -> list[dict[str, str]]:
    """Return groups of modules that the model's own plan divides together."""
    theirs = getattr(model, "_tp_plan", None)
    if not isinstance(theirs, Mapping):
        return []
    groups: dict[str, dict[str, str]] = {}
    for pattern, said in theirs.items():
        for name in modules:
            if said in ("colwise", "rowwise") and _matches(pattern, name):
                groups.setdefault(name.rpartition(".")[0], {})[name] = _THEIRS[said]
    found = []
    for parent, group in groups.items():
        head = getattr(modules[parent], "head_dim", None)
        rest = [f"{parent}.{name}" for name, module in modules[parent].named_modules() if name and _own_params(module)]
        rest = [name for name in rest if name not in group]
        widths = [getattr(modules[name], "out_features", 0) for name, way in group.items() if way == COLUMN]
        if ROW not in group.values() or not widths or _own_params(modules[parent]):
            continue
        if head is not None and any(width % (head * degree) for width in widths):
            continue  # a process would have a part of a head
        if head is None and rest:
            continue
        if any(p.numel() != head for name in rest for p in modules[name].parameters(recurse=False)):
            continue
        found.append({**group, **dict.fromkeys(rest, SUMMED)})
    return found


def _pairs(modules: dict[str, nn.Module]) -> list[dict[str, str]]:
    found = []
    for name, module in modules.items():
        dot = f"{name}." if name else ""
        if type(module) in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
            if getattr(module.activation, "__name__", "") in ("relu", "gelu"):
                found.append({f"{dot}linear1": COLUMN, f"{dot}linear2": ROW})
        elif type(module) is nn.Sequential:
            found += _in_sequence(dot, module)
        elif type(module).__module__.startswith("transformers."):
            names = {child for child, inner in module.named_children() if _own_params(inner)}
            found += [{dot + one: COLUMN, dot + two: ROW} for one, two in _PAIRS if names == {one, two}]
    return found


def _in_sequence(dot: str, chain: nn.Sequential) -> list[dict[str, str]]:
    found, first = [], None
    for name, module in chain.named_children():
        if type(module) is nn.Linear:
            if first is not None:
                found.append({dot + first: COLUMN, dot + name: ROW})
                first = None
            else:
                first = name
        elif type(module) not in _ELEMENTWISE:
            first = None
    return found


def _tied(model: nn.Module) -> set[int]:
    """Return the ids of parameters that several modules share."""
    users: dict[int, int] = {}
    for module in model.modules():
        for param in _own_params(module):
            users[id(param)] = users.get(id(param), 0) + 1
    return {key for key, count in users.items() if count > 1}


def _own_params(module: nn.Module) -> list[nn.Parameter]:
    return [param for param in module._parameters.values() if param is not None]


def _matches(pattern: str, name: str) -> bool:
    """Check a module name against a pattern in which * stands for one part between dots."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"[^.]+"), name) is not None
