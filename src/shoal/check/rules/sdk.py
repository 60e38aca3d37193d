"""Scripts that use `shoal.init`: the calls that belong to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shoal.check.asked import Asked
from shoal.check.calls import keyword_of
from shoal.check.frameworks import ACCELERATE, FABRIC, HUGGING_FACE, LIGHTNING, NETMIND, TRAINER, frameworks_of
from shoal.check.module import UNKNOWN, Module
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.check.training import is_optimizer, loops_of, wraps_models
from shoal.core.checks import Severity

_OTHERS = {ACCELERATE, FABRIC, HUGGING_FACE, LIGHTNING, NETMIND, TRAINER}
_RUN = "shoal.init()"
_SCHEDULERS = ("torch.optim.lr_scheduler.", "transformers.", "torch.amp.", "torch.cuda.amp.")


@rule(
    "sdk-no-step",
    Severity.WARNING,
    why="Metrics, progress, timed checkpoints and a stop that saves all happen in run.step.",
    fix="Call `run.step(loss=loss)` once per iteration, on every worker.",
)
def no_step(program: Program, asked: Asked) -> Iterator[Hit]:
    run = _the_run(program)
    if run and _trains_itself(program) and not _may_call(program, "step"):
        yield Hit(*run, "The run is begun, but no step is ever told to it.")


@rule(
    "sdk-no-prepare",
    Severity.WARNING,
    why="What is not prepared is not saved, and the job starts over after a failure.",
    fix="`model, optimizer, loader = run.prepare(model, optimizer, loader)` before the loop.",
)
def no_prepare(program: Program, asked: Asked) -> Iterator[Hit]:
    run = _the_run(program)
    if not run or not _trains_itself(program) or _may_call(program, "prepare"):
        return
    parallel = keyword_of(run[1], "parallel")
    alone = isinstance(parallel, ast.Constant) and parallel.value == "none"
    wraps = any(wraps_models(o) for m in program.modules for c in m.all(ast.Call) for o in m.called(c))
    if alone or wraps or program.imports("torch.distributed"):
        return
    if asked.workers > 1:
        message = f"Nothing is given to run.prepare: each of the {asked.workers} workers trains a model of its own."
        yield Hit(*run, message, severity=Severity.ERROR, why="Their gradients are never averaged.")
    else:
        yield Hit(*run, "Nothing is given to run.prepare.")


@rule(
    "sdk-no-finish",
    Severity.WARNING,
    why="The last checkpoint takes all workers; at the exit of Python nobody knows whether all will come, so none is made.",
    fix="Call `run.finish()` at the end, or use `with shoal.init(…) as run:`.",
)
def no_finish(program: Program, asked: Asked) -> Iterator[Hit]:
    run = _the_run(program)
    if not run or asked.workers < 2 or not _may_call(program, "step") or set(frameworks_of(program)) & _OTHERS:
        return
    module, call = run
    ends_by_itself = _may_call(program, "finish") or _may_call(program, "loop")  # the last step of a loop is saved
    if not isinstance(module.scopes.parents[call], ast.withitem) and not ends_by_itself:
        yield Hit(module, call, f"The run of {asked.workers} workers is never finished.")


def _trains_itself(program: Program) -> bool:
    """In a loop of its own that the run goes along with: not one whose results alone are told to it at the end."""
    if not loops_of(program) or set(frameworks_of(program)) & _OTHERS:
        return False
    return any(_may_call(program, method) for method in ("step", "prepare")) or not _may_call(program, "evaluate")


def _the_run(program: Program) -> tuple[Module, ast.Call] | None:
    """The one call of `shoal.init`, if all that is done with it can be seen."""
    found = list(program.calls("shoal", "init"))
    given_away = any(
        _RUN in module.origins(argument)
        for module in program.modules
        for call in module.all(ast.Call)
        for argument in (*call.args, *(k.value for k in call.keywords))
    )
    return found[0] if len(found) == 1 and program.is_whole and not given_away else None


def _may_call(program: Program, method: str) -> bool:
    """Whether the run's method is called, or something is that may be the run."""
    for module, _, function in program.methods(method):
        origins = module.origins(function.value)
        if _RUN in origins:
            return True
        if UNKNOWN in origins and not is_optimizer(module, function.value):
            return True
        if not any(o.startswith(("torch.optim.", *_SCHEDULERS)) or "prepare()" in o for o in origins):
            return True
    return False
