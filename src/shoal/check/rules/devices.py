"""Devices written into the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from shoal.check.asked import Asked
from shoal.check.module import Module, is_from
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.core.checks import Severity

_DEVICE = re.compile(r"cuda:(\d+)")


@rule(
    "fixed-device",
    Severity.WARNING,
    why="All workers of a node would crowd onto one accelerator, and the others stay idle.",
    fix="`run.device`, or `torch.device('cuda', int(os.environ['LOCAL_RANK']))`.",
)
def fixed_device(program: Program, asked: Asked) -> Iterator[Hit]:
    for module in program.modules:
        for node, number in _fixed(module):
            if asked.accels > 1:
                yield Hit(
                    module, node, f"cuda:{number} is written into the code, and a node has {asked.accels} workers."
                )
            elif number > 0:
                message = f"cuda:{number} is written into the code, and a node with one accelerator has only cuda:0."
                yield Hit(module, node, message, severity=Severity.ERROR, why="The device does not exist there.")


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
    """Compared with, mapped to something else, or a default that may never be used."""
    above = module.scopes.parents.get(node)
    if isinstance(above, ast.Dict):
        return node in above.keys
    if isinstance(above, ast.keyword) and above.arg == "default":
        return True
    return isinstance(above, (ast.Expr, ast.Compare, ast.JoinedStr, ast.arguments))


def _number_given(module: Module, call: ast.Call) -> int | None:
    """`torch.device("cuda", 0)`, `torch.cuda.set_device(0)`, `x.cuda(0)`."""
    match call:
        case ast.Call(args=[ast.Constant(value="cuda"), ast.Constant(value=int(number))]):
            return number if all(is_from(o, "torch", "device") for o in module.called(call)) else None
        case ast.Call(func=ast.Attribute(attr="cuda"), args=[ast.Constant(value=int(number))]):
            return number
        case ast.Call(args=[ast.Constant(value=int(number))]):
            return number if all(is_from(o, "torch.cuda", "set_device") for o in module.called(call)) else None
    return None
