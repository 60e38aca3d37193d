"""Rules about collective operations that only one worker executes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shoal.check.calls import keyword_of
from shoal.check.job_facts import JobFacts
from shoal.check.module import Module, is_from
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.core.checks import Severity

_TORCH = (
    "barrier all_reduce all_gather all_gather_object all_gather_into_tensor broadcast broadcast_object_list reduce "
    "reduce_scatter gather gather_object scatter monitored_barrier"
).split()
_ACCELERATE = ("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "save_state")
_SHOAL = ("step", "checkpoint", "prepare")
_MAIN = frozenset(
    {"is_main", "is_main_process", "is_local_main_process", "is_global_zero", "is_world_process_zero", "is_rank_zero"}
)


@rule(
    "rank0-collective",
    Severity.ERROR,
    why="The other workers never reach this call, so the first one waits for them until a timeout ends the job.",
    fix="Move it out of the `if`, so that every worker calls it.",
)
def rank0_collective(program: Program, asked: JobFacts) -> Iterator[Hit]:
    for module in program.modules:
        for test in module.all(ast.If):
            if not is_first_worker(test.test) or test.orelse:
                continue
            for call in _in_body(module, test.body):
                name = _collective(module, call)
                if name and not _met_elsewhere(module, test, call):
                    later = Severity.WARNING if asked.workers == 1 else None
                    yield Hit(module, call, f"{name} is called by the first worker only.", severity=later)


@rule(
    "rank0-evaluation",
    Severity.WARNING,
    why="The others wait in the next collective; an evaluation longer than its timeout (10 to 30 minutes) ends the job.",
    fix="Distribute the evaluation over all workers, or give init_process_group a longer `timeout=`.",
)
def rank0_evaluation(program: Program, asked: JobFacts) -> Iterator[Hit]:
    if asked.workers < 2 or any(keyword_of(c, "timeout") for _, c in program.calls("torch", "init_process_group")):
        return
    for module in program.modules:
        for test in module.all(ast.If):
            if is_first_worker(test.test) and not test.orelse and _evaluates(module, test.body):
                behind = _behind(module, test)
                if behind:
                    yield Hit(module, test.test, f"Only the first worker evaluates, while the others wait in {behind}.")


def is_first_worker(test: ast.expr) -> bool:
    """Check for `rank == 0`, `run.is_main`, `dist.get_rank() == 0`, also combined with other conditions."""
    match test:
        case ast.BoolOp(op=ast.And()):
            return any(map(is_first_worker, test.values))
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            return _is_rank(test.left)
        case ast.UnaryOp(op=ast.Not()):
            return _is_rank(test.operand)
        case ast.Call(func=function, args=[]):
            return _last_name(function) in _MAIN
        case ast.Attribute() | ast.Name():
            return _last_name(test) in _MAIN
    return False


def _is_rank(node: ast.expr) -> bool:
    name = _last_name(node.func if isinstance(node, ast.Call) else node)
    return name in ("rank", "local_rank", "global_rank", "get_rank", "RANK", "LOCAL_RANK", "process_index")


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _in_body(module: Module, body: list[ast.stmt]) -> Iterator[ast.Call]:
    for statement in body:
        yield from (
            module.within(statement, ast.Call) if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)) else []
        )


def _collective(module: Module, call: ast.Call) -> str | None:
    if keyword_of(call, "group") is not None or keyword_of(call, "process_group") is not None:
        return None
    called = module.called(call)
    for origin in called:
        known = (
            is_from(origin, "torch.distributed", *_TORCH)
            or is_from(origin, "accelerate.Accelerator()", *_ACCELERATE)
            or is_from(origin, "shoal.init()", *_SHOAL)
        )
        if not known:
            return None
    return ast.unparse(call.func) if called else None


def _met_elsewhere(module: Module, test: ast.If, call: ast.Call) -> bool:
    """Check whether the others call it too, in their own branch (`if rank != 0: dist.barrier()`), or the first one returns."""
    if isinstance(test.body[-1], (ast.Return, ast.Raise)):
        return True
    name = ast.unparse(call.func)
    here = module.function_of(test)
    for other in module.all(ast.If):
        if other is test or module.function_of(other) is not here or is_first_worker(other.test):
            continue
        branch = [*other.body, *other.orelse]
        words = {_last_name(n) for n in ast.walk(other.test) if isinstance(n, ast.expr)}
        about_rank = any("rank" in word.lower() or word in _MAIN for word in words)
        if about_rank and any(ast.unparse(c.func) == name for c in _in_body(module, branch)):
            return True
    return False


def _evaluates(module: Module, body: list[ast.stmt]) -> bool:
    """Check whether statements evaluate a model: a loop under `no_grad`, directly or in a called function."""
    for call in _in_body(module, body):
        for origin in module.called(call):
            function = module.definition(origin)
            if isinstance(function, ast.FunctionDef) and _is_evaluation(function):
                return True
    return any(_is_evaluation(statement) for statement in body)


def _is_evaluation(node: ast.AST) -> bool:
    text = ast.unparse(node)
    loops = any(isinstance(n, ast.For) for n in ast.walk(node))
    return loops and ("no_grad" in text or "inference_mode" in text) and "backward" not in text


def _behind(module: Module, test: ast.If) -> str | None:
    """Return the name of the next collective in the same block, or None."""
    above = module.scopes.parents[test]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(above, name, None)
        if isinstance(block, list) and test in block:
            for statement in block[block.index(test) + 1 :]:
                for call in _in_body(module, [statement]):
                    if _collective(module, call):
                        return ast.unparse(call.func)
    return None
