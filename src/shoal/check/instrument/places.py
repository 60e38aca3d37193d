"""Places in a script for shoal.init, run.prepare and run.finish, such that the training loop can use `run`."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from shoal.check.module import Module
from shoal.check.training import Loop
from shoal.core.errors import Refused


@dataclass(frozen=True, slots=True)
class Places:
    begin: ast.stmt
    """Statement below shoal.init."""
    prepare: ast.stmt | None
    """Statement below run.prepare; None if model, optimizer and loader are nowhere all visible by name."""
    end: ast.stmt
    """Statement above run.finish; if it is a return or raise, run.finish goes above it."""
    names: dict[str, str]
    """Mapping of a name in the loop → the name of the same object at the place of run.prepare."""


def places_of(loop: Loop) -> Places:
    """Return the places in the loop's own function if it is called once, else where the script starts the training."""
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
    """Return the block of statements that contains a statement."""
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
    """Return the only call of a function, or None if there are none or several."""
    name = getattr(function, "name", None)
    calls = [c for c in module.all(ast.Call) if isinstance(c.func, ast.Name) and c.func.id == name]
    return calls[0] if len(calls) == 1 else None


def _binds(module: Module, function: ast.AST, optimizer: ast.expr | None) -> bool:
    """Check whether a function creates the optimizer itself, so that the model is visible there too."""
    if not isinstance(optimizer, ast.Name):
        return False
    bindings = module.scopes.inside(function).names.get(optimizer.id, [])
    return any(not isinstance(binding.node, ast.arg) for binding in bindings)


def _start(module: Module, function: ast.AST) -> ast.stmt:
    """Return the first statement of `if __name__ == "__main__":`, or the top-level statement that leads to the function."""
    for statement in module.tree.body:
        if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
            return statement.body[0]
    leading = callers(module, function)
    for statement in module.tree.body:
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and _called_in(statement) & leading:
            return statement
    raise Refused(
        f"{module.path} is not a script: it does not start the training.",
        hint='Instrument the script that starts it, or add `if __name__ == "__main__":` to this one.',
    )


def callers(module: Module, function: ast.AST) -> set[str]:
    """Return the names of all functions and classes that call a function, directly or indirectly, including itself."""
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
