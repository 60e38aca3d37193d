"""Training loops of a program: the call of `backward`, the optimizer step, and the data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from shoal.check.module import UNKNOWN, Module, is_from
from shoal.check.program import Program

_AROUND_DATA = frozenset({"enumerate", "tqdm", "trange", "islice", "iter", "cycle", "loop", "progress_bar", "track"})
_OPTIMIZER_NAME = re.compile(r"(?:^|_)(?:optim|optimizer|opt)(?:$|_|[A-Z\d])|[oO]ptimizer")
_LOSS_NAME = re.compile(r"loss|cost|criterion|objective|^l$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Loop:
    """One call of `backward` and the parts of its training loop; None for parts that are missing or unknown."""

    module: Module
    backward: ast.Call
    loss: ast.expr | None
    inner: ast.For | ast.AsyncFor | ast.While | None
    """Loop of optimizer steps; `backward` may be in a loop inside it, over the parts of a batch."""
    outer: ast.For | ast.AsyncFor | ast.While | None
    """Outermost loop around it in its function: the epochs, or the same loop."""
    step: ast.Call | None
    """Call of `optimizer.step()`."""
    optimizer: ast.expr | None
    loader: ast.expr | None


@lru_cache(maxsize=4)
def loops_of(program: Program) -> list[Loop]:
    return [loop for module in program.modules for loop in loops_in(module)]


def loops_in(module: Module) -> list[Loop]:
    """Return the training loops in the order of the source; several `backward` calls in one loop count once."""
    found: list[Loop] = []
    for call in module.all(ast.Call):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "backward"):
            continue
        loop = _loop_at(module, call)
        if loop.inner is None or all(other.inner is not loop.inner for other in found):
            found.append(loop)
    return found


def is_optimizer(module: Module, node: ast.expr) -> bool:
    """Check whether an expression is an optimizer, by its origin or, if that is unknown, by its name."""
    origins = module.origins(node)
    if any(_makes_optimizer(origin) for origin in origins):
        return True
    text = ast.unparse(node).rpartition(".")[2]
    return UNKNOWN in origins and bool(_OPTIMIZER_NAME.search(text)) and "sched" not in text.lower()


def data_of(node: ast.expr) -> ast.expr:
    """Return the data that is iterated over, without wrappers such as `enumerate` and `tqdm`."""
    while isinstance(node, ast.Call) and node.args:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in _AROUND_DATA:
            break
        node = node.args[0]
    return node


def wraps_models(origin: str) -> bool:
    """Check whether a call wraps a model so that gradients are averaged over the workers (DDP, FSDP)."""
    return is_from(origin, "torch", "DistributedDataParallel", "FullyShardedDataParallel")


def _loop_at(module: Module, backward: ast.Call) -> Loop:
    around = module.loops_around(backward)
    inner, outer = (around[0], around[-1]) if around else (None, None)
    step = next(_steps(module, module.function_of(backward) or module.tree), None) if not around else None
    for loop in around:
        step = next(_steps(module, loop), None)
        if step is not None:
            inner = loop
            break
    optimizer = None
    if step is not None and isinstance(step.func, ast.Attribute):
        scaled = bool(step.args) and is_optimizer(module, step.args[0])
        optimizer = step.args[0] if scaled else step.func.value
    loader = data_of(inner.iter) if isinstance(inner, (ast.For, ast.AsyncFor)) else None
    return Loop(module, backward, _loss_of(backward), inner, outer, step, optimizer, loader)


def _steps(module: Module, area: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of `optimizer.step()` and `scaler.step(optimizer)`."""
    for call in module.within(area, ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
            continue
        if is_optimizer(module, call.func.value) or (call.args and is_optimizer(module, call.args[0])):
            yield call


def _loss_of(backward: ast.Call) -> ast.expr | None:
    """Return the variable of the loss in `loss.backward()`, `accelerator.backward(loss)` or `scaler.scale(loss).backward()`."""
    assert isinstance(backward.func, ast.Attribute)  # noqa: S101
    # The argument is the loss only for helpers (Accelerate …); a tensor's own backward takes no loss.
    given = backward.args[0] if backward.args and _is_helper(backward.func.value) else backward.func.value
    names = [n for n in ast.walk(given) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    if isinstance(given, ast.Name):
        return given
    return next((n for n in names if _LOSS_NAME.search(n.id)), None)


def _is_helper(node: ast.expr) -> bool:
    """Check whether `backward` is a method of a helper (Accelerate, Fabric, DeepSpeed), which is not named like a loss."""
    return not _LOSS_NAME.search(ast.unparse(node).rpartition(".")[2])


def _makes_optimizer(origin: str) -> bool:
    name = origin.partition("()")[0]
    if ".lr_scheduler." in name or not origin.endswith("()"):
        return False
    return (
        (name.startswith("torch.optim.") and not name.endswith("swa_utils.AveragedModel"))
        or ".optim." in f".{name}"
        or is_from(name, "transformers", "AdamW", "Adafactor")
    )
