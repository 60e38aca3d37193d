"""Rules for scripts that use `shoal.init`: the other calls that it requires."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shoal.check.calls import keyword_of
from shoal.check.frameworks import ACCELERATE, FABRIC, HUGGING_FACE, LIGHTNING, NETMIND, TRAINER, frameworks_of
from shoal.check.job_facts import JobFacts
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
    why="run.step reports metrics and progress, saves timed checkpoints, and saves before a stop.",
    fix="Call `run.step(loss=loss)` once per iteration, on every worker.",
)
def no_step(program: Program, asked: JobFacts) -> Iterator[Hit]:
    run = _the_run(program)
    if run and _trains_itself(program) and not _may_call(program, "step"):
        yield Hit(*run, "The run is started, but run.step is never called.")


@rule(
    "sdk-no-prepare",
    Severity.WARNING,
    why="Only prepared objects are saved. Without them, the job starts from the beginning after a failure.",
    fix="Add `model, optimizer, loader = run.prepare(model, optimizer, loader)` before the loop.",
)
def no_prepare(program: Program, asked: JobFacts) -> Iterator[Hit]:
    run = _the_run(program)
    if not run or not _trains_itself(program) or _may_call(program, "prepare"):
        return
    parallel = keyword_of(run[1], "parallel")
    alone = isinstance(parallel, ast.Constant) and parallel.value == "none"
    wraps = any(wraps_models(o) for m in program.modules for c in m.all(ast.Call) for o in m.called(c))
    if alone or wraps or program.imports("torch.distributed"):
        return
    if asked.workers > 1:
        message = f"run.prepare is never called: each of the {asked.workers} workers trains its own model."
        yield Hit(*run, message, severity=Severity.ERROR, why="Their gradients are never averaged.")
    else:
        yield Hit(*run, "run.prepare is never called.")


@rule(
    "sdk-no-finish",
    Severity.WARNING,
    why="The last checkpoint needs all workers. When Python exits, it is unknown whether all take part, so none is saved.",
    fix="Call `run.finish()` at the end, or use `with shoal.init(…) as run:`.",
)
def no_finish(program: Program, asked: JobFacts) -> Iterator[Hit]:
    run = _the_run(program)
    if not run or asked.workers < 2 or not _may_call(program, "step") or set(frameworks_of(program)) & _OTHERS:
        return
    module, call = run
    ends_by_itself = _may_call(program, "finish") or _may_call(program, "loop")  # run.loop saves after its last step
    if not isinstance(module.scopes.parents[call], ast.withitem) and not ends_by_itself:
        yield Hit(module, call, f"The run of {asked.workers} workers is never finished.")


def _trains_itself(program: Program) -> bool:
    """Check whether the script has its own training loop that uses the run (not only for an evaluation at the end)."""
    if not loops_of(program) or set(frameworks_of(program)) & _OTHERS:
        return False
    return any(_may_call(program, method) for method in ("step", "prepare")) or not _may_call(program, "evaluate")


def _the_run(program: Program) -> tuple[Module, ast.Call] | None:
    """Return the only call of `shoal.init`, or None if the run is passed to other code or some code is unknown."""
    found = list(program.calls("shoal", "init"))
    given_away = any(
        _RUN in module.origins(argument)
        for module in program.modules
        for call in module.all(ast.Call)
        for argument in (*call.args, *(k.value for k in call.keywords))
    )
    return found[0] if len(found) == 1 and program.is_whole and not given_away else None


def _may_call(program: Program, method: str) -> bool:
    """Check whether a method of the run is called, or the same method of an object that may be the run."""
    for module, _, function in program.methods(method):
        origins = module.origins(function.value)
        if _RUN in origins:
            return True
        if UNKNOWN in origins and not is_optimizer(module, function.value):
            return True
        if not any(o.startswith(("torch.optim.", *_SCHEDULERS)) or "prepare()" in o for o in origins):
            return True
    return False
