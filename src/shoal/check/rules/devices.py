"""Rule about devices that are hard-coded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from shoal.check.job_facts import JobFacts
from shoal.check.module import Module, is_from
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.core.checks import Severity

_DEVICE = re.compile(r"cuda:(\d+)")


@rule(
    "fixed-device",
    Severity.WARNING,
    why="All workers of a node would use the same accelerator, and the others stay idle.",
    fix="Use `run.device`, or `torch.device('cuda', int(os.environ['LOCAL_RANK']))`.",
)
def fixed_device(program: Program, asked: JobFacts) -> Iterator[Hit]:
    for module in program.modules:
        for node, number in _fixed(module):
            if asked.accels > 1:
                yield Hit(module, node, f"cuda:{number} is hard-coded, but a node has {asked.accels} workers.")
            elif number > 0:
                message = f"cuda:{number} is hard-coded, but a node with one accelerator has only cuda:0."
                yield Hit(module, node, message, severity=Severity.ERROR, why="The device does not exist on the node.")


def _fixed(module: Module) -> Iterator[tuple[ast.AST, int]]:
    for node in module.all(ast.Constant):
        found = _DEVICE.fullmatch(node.value) if isinstance(node.value, str) else None
        if found and not _is_replaceable(module, node):
            yield node, int(found[1])
    for call in module.all(ast.Call):
        number = _number_given(module, call)
        if number is not None:
            yield call, number


def _is_replaceable(module: Module, node: ast.Constant) -> bool:
    """Check whether a constant is only compared, mapped to something else, or a default that may be overridden."""
    above = module.scopes.parents.get(node)
    if isinstance(above, ast.Dict):
        return node in above.keys
    if isinstance(above, ast.keyword) and above.arg == "default":
        return True
    return isinstance(above, (ast.Expr, ast.Compare, ast.JoinedStr, ast.arguments))


def _number_given(module: Module, call: ast.Call) -> int | None:
    """Return the number in `torch.device("cuda", 0)`, `torch.cuda.set_device(0)` or `x.cuda(0)`, else None."""
    match call:
        case ast.Call(args=[ast.Constant(value="cuda"), ast.Constant(value=int(number))]):
            return number if all(is_from(o, "torch", "device") for o in module.called(call)) else None
        case ast.Call(func=ast.Attribute(attr="cuda"), args=[ast.Constant(value=int(number))]):
            return number
        case ast.Call(args=[ast.Constant(value=int(number))]):
            return number if all(is_from(o, "torch.cuda", "set_device") for o in module.called(call)) else None
    return None
