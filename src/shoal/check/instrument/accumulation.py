"""Loops that accumulate gradients: the number by which they divide the loss before `backward`."""

from __future__ import annotations

import ast

from shoal.check.training import Loop


def whole_loss(loop: Loop) -> str:
    """Return the expression of the loss that was not divided for the accumulation: `loss`, or `loss * steps`."""
    assert isinstance(loop.loss, ast.Name)  # noqa: S101
    divisor = _divisor(loop, loop.loss.id)
    return f"{loop.loss.id} * {divisor}" if divisor in _counts(loop) else loop.loss.id


def _divisor(loop: Loop, loss: str) -> str | None:
    """Return the divisor of the last assignment to the loss before `backward`, or None."""
    if loop.inner is None:
        return None
    last: ast.Assign | ast.AugAssign | None = None
    nodes: list[ast.Assign | ast.AugAssign] = [*loop.module.within(loop.inner, ast.Assign)]
    nodes += loop.module.within(loop.inner, ast.AugAssign)
    for node in nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        is_loss = any(isinstance(target, ast.Name) and target.id == loss for target in targets)
        if is_loss and node.lineno <= loop.backward.lineno and (last is None or node.lineno > last.lineno):
            last = node
    divided: ast.expr | None = None
    if isinstance(last, ast.AugAssign) and isinstance(last.op, ast.Div):
        divided = last.value
    elif isinstance(last, ast.Assign) and isinstance(last.value, ast.BinOp) and isinstance(last.value.op, ast.Div):
        divided = last.value.right
    return ast.unparse(divided) if isinstance(divided, (ast.Name, ast.Attribute, ast.Constant)) else None


def _counts(loop: Loop) -> set[str]:
    """Return the numbers of `backward` calls per optimizer step: of `range(n)` around it, or `% n` around the step."""
    found: set[str] = set()
    for around in loop.module.loops_around(loop.backward):
        if around is loop.inner:
            break
        given = around.iter if isinstance(around, ast.For) else None
        if isinstance(given, ast.Call) and ast.unparse(given.func) in ("range", "trange") and given.args:
            found.add(ast.unparse(given.args[-1]))
    for above in loop.module.scopes.above(loop.step) if loop.step is not None else ():
        if above is loop.inner:
            break
        for node in ast.walk(above.test) if isinstance(above, ast.If) else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                found.add(ast.unparse(node.right))
    return found
