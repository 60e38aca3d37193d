"""Rules for scripts written for NetMind Power: the calls that its guide requires."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shoal.check.calls import has_unpacking, keyword_of
from shoal.check.frameworks import NETMIND_PACKAGES, classes_of, is_hf_trainer, uses_hf_trainer
from shoal.check.job_facts import JobFacts
from shoal.check.module import Module, is_from
from shoal.check.program import Program
from shoal.check.registry import Finder, Hit, rule
from shoal.check.training import loops_of
from shoal.core.checks import Severity

_CALLBACK = "NetmindTrainerCallback"
_USES = ("init_train_bar", "step", "evaluate", "finish_training", "save_pretrained", "save_pretrained_by_step")


@rule(
    "netmind-no-init",
    Severity.ERROR,
    why="The other calls of nmp need the run that nmp.init starts, and fail without it.",
    fix="Call `nmp.init(use_ddp=True)` before the model is wrapped.",
)
def no_init(program: Program, asked: JobFacts) -> Iterator[Hit]:
    if not _trains(program) or not program.is_whole or _calls(program, "init"):
        return
    uses = _calls(program, *_USES)
    if uses:
        yield Hit(*uses[0], "nmp is used, but nmp.init is never called.")


def _never_calls(method: str, *, of_trainers: bool = False) -> Finder:
    """Return a finder for scripts that start a run and train, but never call the method."""

    def find(program: Program, asked: JobFacts) -> Iterator[Hit]:
        init, trainer = _calls(program, "init"), uses_hf_trainer(program)
        trains = of_trainers if trainer else bool(loops_of(program))
        if init and trains and program.is_whole and not _mentions(program, method):
            yield Hit(*init[0], f"nmp.{method} is never called.")

    return find


rule(
    "netmind-no-bar",
    Severity.WARNING,
    why="nmp.init_train_bar sets the total number of steps, and loads the newest checkpoint after a restart.",
    fix="Call `nmp.init_train_bar(max_steps=…)`, or with total_epoch and step_per_epoch, before the loop.",
)(_never_calls("init_train_bar"))
rule(
    "netmind-no-step",
    Severity.WARNING,
    why="nmp.step reports metrics and progress, saves checkpoints, and saves before a stop.",
    fix='Call `nmp.step({"loss": loss.item()})` once per training step.',
)(_never_calls("step"))
rule(
    "netmind-no-finish",
    Severity.WARNING,
    why="nmp.finish_training saves the last checkpoint; with several workers, none is saved without it.",
    fix="Call `nmp.finish_training()` at the end.",
)(_never_calls("finish_training", of_trainers=True))


@rule(
    "netmind-no-callback",
    Severity.WARNING,
    why="The callback reports metrics and progress, saves checkpoints and resumes.",
    fix="Use `Trainer(…, callbacks=[NetmindTrainerCallback])`, or a subclass of it.",
)
def no_callback(program: Program, asked: JobFacts) -> Iterator[Hit]:
    if not _calls(program, "init") or next(program.methods("add_callback"), None) is not None:
        return
    for module in program.modules:
        for call in module.all(ast.Call):
            if any(map(is_hf_trainer, classes_of(module, call))) and not _has_callback(program, module, call):
                yield Hit(module, call.func, f"This Trainer has no {_CALLBACK}.")


def _has_callback(program: Program, module: Module, call: ast.Call) -> bool:
    given = keyword_of(call, "callbacks")
    if has_unpacking(call) or len(call.args) > 1 or _is_computed(given):
        return True
    items = given.elts if isinstance(given, (ast.List, ast.Tuple)) else []
    for item in items:
        origins = module.origins(item.func if isinstance(item, ast.Call) else item)
        bases = frozenset[str]().union(*map(module.bases, origins))
        if "?" in bases or any(base.rpartition(".")[2] in (_CALLBACK, "ShoalCallback") for base in bases):
            return True
        if _reports_steps(program, item.func if isinstance(item, ast.Call) else item):
            return True
    return False


def _reports_steps(program: Program, callback: ast.expr) -> bool:
    """Check whether a callback is a class of the script that calls nmp.step itself."""
    name = ast.unparse(callback).rpartition(".")[2]
    return any(
        isinstance(above, ast.ClassDef) and above.name == name
        for module, node in _mentions(program, "step")
        for above in module.scopes.above(node)
    )


def _is_computed(given: ast.expr | None) -> bool:
    return given is not None and not isinstance(given, (ast.List, ast.Tuple))


def _trains(program: Program) -> bool:
    return bool(loops_of(program)) or uses_hf_trainer(program)


def _calls(program: Program, *names: str) -> list[tuple[Module, ast.Call]]:
    """Return the calls of these methods of nmp."""
    return [
        (module, call)
        for module, call, _ in program.methods(*names)
        if any(
            is_from(o, p, *names) and o.rpartition(".")[0].endswith(".nmp")
            for o in module.called(call)
            for p in NETMIND_PACKAGES
        )
    ]


def _mentions(program: Program, name: str) -> list[tuple[Module, ast.Attribute]]:
    """Return the places that call a method of nmp, or pass it on as a function."""
    return [
        (module, node)
        for module in program.modules
        for node in module.all(ast.Attribute)
        if node.attr == name
        and any(
            is_from(o, p, name) and o.rpartition(".")[0].endswith(".nmp")
            for o in module.origins(node)
            for p in NETMIND_PACKAGES
        )
    ]
