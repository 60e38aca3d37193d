"""Conditions that are certain before a run: flags that are off, constants, and switches of the command line."""

from __future__ import annotations

import ast

from shoal.check.arguments import Arguments, Option
from shoal.check.calls import keyword_of
from shoal.check.module import Module

_CONFIGURES = ("exec(", "globals()", "sys.argv")


def never_runs(module: Module, node: ast.AST, arguments: Arguments) -> bool:
    """Check whether a node is in a branch that is certainly not taken with the given arguments."""
    inside: ast.AST = node
    for above in module.scopes.above(node):
        if isinstance(above, ast.If):
            truth = _truth(module, above.test, arguments)
            if (truth is False and inside in above.body) or (truth is True and inside in above.orelse):
                return True
        inside = above
    return False


def _truth(module: Module, test: ast.expr, arguments: Arguments) -> bool | None:
    """Return the value of a condition; None if it is not certain."""
    match test:
        case ast.Constant():
            return bool(test.value)
        case ast.UnaryOp(op=ast.Not()):
            inverse = _truth(module, test.operand, arguments)
            return None if inverse is None else not inverse
        case ast.BoolOp():
            found = [_truth(module, value, arguments) for value in test.values]
            decisive = isinstance(test.op, ast.Or)
            if decisive in found:
                return decisive
            return None if None in found else not decisive
        case ast.Attribute() if options := [o for o in arguments.options if o.dest == test.attr]:
            known = {_flag(arguments, option) for option in options}
            return known.pop() if len(known) == 1 else None
        case ast.Name():
            return _constant(module, test, arguments)
    return None


def _flag(arguments: Arguments, option: Option) -> bool | None:
    if arguments.given is None or option.is_positional:
        return None
    is_given = arguments.text_given(option) is not None
    if option.action in ("store_true", "store_false"):
        return is_given is (option.action == "store_true")
    if is_given or not option.has_one_value:
        return None
    default = keyword_of(option.call, "default")
    return bool(default.value) if isinstance(default, ast.Constant) else None if default else False


def _constant(module: Module, name: ast.Name, arguments: Arguments) -> bool | None:
    """Return the value of a variable that is assigned one constant, and that no argument can change."""
    if arguments.given != () and any(word in module.text for word in _CONFIGURES):
        return None
    values = module.values(name) or []
    found = {bool(value.value) if isinstance(value, ast.Constant) else None for value in values}
    return found.pop() if len(found) == 1 else None
