"""Arguments of a call in a syntax tree."""

from __future__ import annotations

import ast


def argument_of(call: ast.Call, function: ast.FunctionDef, parameter: ast.arg) -> ast.expr | None:
    """Return the expression that a call passes for a parameter, or its default; None if that is unknown."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    for keyword in call.keywords:
        if keyword.arg == parameter.arg:
            return keyword.value
    names, defaults = [*function.args.posonlyargs, *function.args.args], function.args.defaults
    if parameter not in names:
        return None
    at = names.index(parameter)
    if at < len(call.args):
        return call.args[at]
    return defaults[at - len(names)] if at >= len(names) - len(defaults) else None


def keyword_of(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def has_unpacking(call: ast.Call) -> bool:
    """Check whether a call unpacks arguments, as in `f(*a, **b)`, so that they are unknown."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
