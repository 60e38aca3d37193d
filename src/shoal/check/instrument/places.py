"""Where in a script the run begins, is prepared and ends, so that the training loop can see it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from shoal.check.module import Module
from shoal.check.training import Loop
from shoal.core.errors import Refused


@dataclass(frozen=True, slots=True)
class Places:
    begin: ast.stmt
    """The run begins above this."""
    prepare: ast.stmt | None
    """What is trained is handed over above this; None: nowhere all of it has names."""
    end: ast.stmt
    """The run ends below this, or above it if it returns."""
    names: dict[str, str]
    """What the loop calls it → what it is called where it is handed over."""


def places_of(loop: Loop) -> Places:
    """In the loop's own function if it is run once; else globally, where the script starts it."""
    module, top = loop.module, _statement(loop)
    function = module.function_of(loop.backward)
    if function is None:
        return Places(top, top, _last(module, top), {})
    site = _only_call(module, function)
    if site is not None and not module.loops_around(site) and _binds(module, function, loop.optimizer):
        return Places(top, top, _last(module, top), {})
    start = _start(module, function)
    if site is None or not isinstance(function, ast.FunctionDef):
        return Places(start, None, _last(module, start), {})
    around = module.loops_around(site)
    prepare: ast.stmt = around[-1] if around else module.statement_of(site)
    names = {}
    for parameter, given in zip([*function.args.posonlyargs, *function.args.args], site.args, strict=False):
        if isinstance(given, ast.Name):
            names[parameter.arg] = given.id
    names |= {k.arg: k.value.id for k in site.keywords if k.arg and isinstance(k.value, ast.Name)}
    begin = prepare if module.function_of(site) is None else start
    return Places(begin, prepare, _last(module, begin), names)


def block_of(module: Module, statement: ast.stmt) -> list[ast.stmt]:
    """The statements it stands among."""
    above = module.scopes.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(above, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]


def _statement(loop: Loop) -> ast.stmt:
    return loop.outer or loop.module.statement_of(loop.backward)


def _last(module: Module, statement: ast.stmt) -> ast.stmt:
    return block_of(module, statement)[-1]


def _only_call(module: Module, function: ast.AST) -> ast.Call | None:
    """The one place a function is called from."""
    name = getattr(function, "name", None)
    calls = [c for c in module.all(ast.Call) if isinstance(c.func, ast.Name) and c.func.id == name]
    return calls[0] if len(calls) == 1 else None


def _binds(module: Module, function: ast.AST, optimizer: ast.expr | None) -> bool:
    """The optimizer is made there, so what it trains is at hand."""
    if not isinstance(optimizer, ast.Name):
        return False
    bindings = module.scopes.inside(function).names.get(optimizer.id, [])
    return any(not isinstance(binding.node, ast.arg) for binding in bindings)


def _start(module: Module, function: ast.AST) -> ast.stmt:
    """The first statement of `if __name__ == "__main__":`, or the one at the top that leads to the function."""
    for statement in module.tree.body:
        if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
            return statement.body[0]
    leading = _callers(module, function)
    for statement in module.tree.body:
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and _called_in(statement) & leading:
            return statement
    raise Refused(
        f"{module.path} is not a script: nothing in it starts the training.",
        hint='Instrument the script that does, or add `if __name__ == "__main__":` to this one.',
    )


def _callers(module: Module, function: ast.AST) -> set[str]:
    """Names of the functions and classes that lead to a function, itself included."""
    found = {getattr(function, "name", "")}
    while True:
        more = {
            node.name
            for node in module.scopes.nodes
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node.name not in found
            and _called_in(node) & found
        }
        if not more:
            return found
        found |= more


def _called_in(node: ast.AST) -> set[str]:
    functions = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    return {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in functions}
