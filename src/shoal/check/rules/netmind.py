"""Scripts written for NetMind Power: the lines its guide asks for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shoal.check.asked import Asked
from shoal.check.calls import has_unpacking, keyword_of
from shoal.check.frameworks import NETMIND_PACKAGES, classes_of, is_hf_trainer, uses_hf_trainer
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
    why="The other calls of nmp need the run that nmp.init begins, and fail without it.",
    fix="`nmp.init(use_ddp=True)` before the model is wrapped.",
)
def no_init(program: Program, asked: Asked) -> Iterator[Hit]:
    if not _trains(program) or not program.is_whole or _calls(program, "init"):
        return
    uses = _calls(program, *_USES)
    if uses:
        yield Hit(*uses[0], "nmp is used, but nmp.init is never called.")


def _lacks(method: str, *, of_trainers: bool = False) -> Finder:
    """A script that begins a run and trains, but never calls the method."""

    def find(program: Program, asked: Asked) -> Iterator[Hit]:
        init, trainer = _calls(program, "init"), uses_hf_trainer(program)
        trains = of_trainers if trainer else bool(loops_of(program))
        if init and trains and program.is_whole and not _calls(program, method):
            yield Hit(*init[0], f"nmp.{method} is never called.")

    return find


rule(
    "netmind-no-bar",
    Severity.WARNING,
    why="nmp.init_train_bar sets what counts as 100 %, and loads the newest checkpoint after a restart.",
    fix="`nmp.init_train_bar(max_steps=…)`, or with total_epoch and step_per_epoch, before the loop.",
)(_lacks("init_train_bar"))
rule(
    "netmind-no-step",
    Severity.WARNING,
    why="Metrics, progress, checkpoints and a stop that saves all happen in nmp.step.",
    fix='`nmp.step({"loss": loss.item()})` once per training step.',
)(_lacks("step"))
rule(
    "netmind-no-finish",
    Severity.WARNING,
    why="nmp.finish_training saves the last checkpoint; with several workers none is made without it.",
    fix="`nmp.finish_training()` at the end.",
)(_lacks("finish_training", of_trainers=True))


@rule(
    "netmind-no-callback",
    Severity.WARNING,
    why="The callback is what reports metrics and progress, keeps checkpoints and resumes.",
    fix="`Trainer(…, callbacks=[NetmindTrainerCallback])`, or a class of your own that derives from it.",
)
def no_callback(program: Program, asked: Asked) -> Iterator[Hit]:
    if not _calls(program, "init") or next(program.methods("add_callback"), None) is not None:
        return
    for module in program.modules:
        for call in module.all(ast.Call):
            if any(map(is_hf_trainer, classes_of(module, call))) and not _has_callback(module, call):
                yield Hit(module, call.func, f"This Trainer has no {_CALLBACK}.")


def _has_callback(module: Module, call: ast.Call) -> bool:
    given = keyword_of(call, "callbacks")
    if has_unpacking(call) or len(call.args) > 1 or _is_computed(given):
        return True
    items = given.elts if isinstance(given, (ast.List, ast.Tuple)) else []
    for item in items:
        origins = module.origins(item.func if isinstance(item, ast.Call) else item)
        bases = frozenset[str]().union(*map(module.bases, origins))
        if "?" in bases or any(base.rpartition(".")[2] in (_CALLBACK, "ShoalCallback") for base in bases):
            return True
    return False


def _is_computed(given: ast.expr | None) -> bool:
    return given is not None and not isinstance(given, (ast.List, ast.Tuple))


def _trains(program: Program) -> bool:
    return bool(loops_of(program)) or uses_hf_trainer(program)


def _calls(program: Program, *names: str) -> list[tuple[Module, ast.Call]]:
    """Of nmp's methods."""
    return [
        (module, call)
        for module, call, _ in program.methods(*names)
        if any(
            is_from(o, p, *names) and o.rpartition(".")[0].endswith(".nmp")
            for o in module.called(call)
            for p in NETMIND_PACKAGES
        )
    ]
