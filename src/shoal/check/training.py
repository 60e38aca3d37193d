"""Training loops in a program: where a loss goes backward, what is stepped, what is iterated over."""

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
    """One `backward` and what belongs to it; None: not there, or not to be told."""

    module: Module
    backward: ast.Call
    loss: ast.expr | None
    inner: ast.For | ast.AsyncFor | ast.While | None
    """The loop of iterations."""
    outer: ast.For | ast.AsyncFor | ast.While | None
    """The outermost one around it in its function: the epochs, or the same."""
    step: ast.Call | None
    """`optimizer.step()`."""
    optimizer: ast.expr | None
    loader: ast.expr | None


@lru_cache(maxsize=4)
def loops_of(program: Program) -> list[Loop]:
    return [loop for module in program.modules for loop in loops_in(module)]


def loops_in(module: Module) -> list[Loop]:
    """In the order of the source; a second backward of the same loop is the same loop."""
    found: list[Loop] = []
    for call in module.all(ast.Call):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "backward"):
            continue
        loop = _loop_at(module, call)
        if loop.inner is None or all(other.inner is not loop.inner for other in found):
            found.append(loop)
    return found


def is_optimizer(module: Module, node: ast.expr) -> bool:
    """By where it comes from, or where that is not known by what it is called."""
    origins = module.origins(node)
    if any(_makes_optimizer(origin) for origin in origins):
        return True
    text = ast.unparse(node).rpartition(".")[2]
    return UNKNOWN in origins and bool(_OPTIMIZER_NAME.search(text)) and "sched" not in text.lower()


def data_of(node: ast.expr) -> ast.expr:
    """What is iterated over, without what only counts it or shows how it goes."""
    while isinstance(node, ast.Call) and node.args:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in _AROUND_DATA:
            break
        node = node.args[0]
    return node


def wraps_models(origin: str) -> bool:
    """A call that makes of a model one whose gradients are shared out."""
    return is_from(origin, "torch", "DistributedDataParallel", "FullyShardedDataParallel")


def _loop_at(module: Module, backward: ast.Call) -> Loop:
    around = module.loops_around(backward)
    inner, outer = (around[0], around[-1]) if around else (None, None)
    area: ast.AST = inner or module.function_of(backward) or module.tree
    step = next(_steps(module, area), None)
    optimizer = None
    if step is not None and isinstance(step.func, ast.Attribute):
        scaled = bool(step.args) and is_optimizer(module, step.args[0])
        optimizer = step.args[0] if scaled else step.func.value
    loader = data_of(inner.iter) if isinstance(inner, (ast.For, ast.AsyncFor)) else None
    return Loop(module, backward, _loss_of(backward), inner, outer, step, optimizer, loader)


def _steps(module: Module, area: ast.AST) -> Iterator[ast.Call]:
    """`optimizer.step()` and `scaler.step(optimizer)`."""
    for call in module.within(area, ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
            continue
        if is_optimizer(module, call.func.value) or (call.args and is_optimizer(module, call.args[0])):
            yield call


def _loss_of(backward: ast.Call) -> ast.expr | None:
    """`loss.backward()`, `accelerator.backward(loss)`, `scaler.scale(loss / n).backward()`: the part that has a name."""
    assert isinstance(backward.func, ast.Attribute)  # noqa: S101
    # A tensor's own backward takes no loss.
    given = backward.args[0] if backward.args and _is_helper(backward.func.value) else backward.func.value
    names = [n for n in ast.walk(given) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    if isinstance(given, ast.Name):
        return given
    return next((n for n in names if _LOSS_NAME.search(n.id)), None)


def _is_helper(node: ast.expr) -> bool:
    """Accelerate, Fabric, DeepSpeed: what is called so is no loss, and is given one."""
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
