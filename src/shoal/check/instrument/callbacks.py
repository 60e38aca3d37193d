"""Insertion of callbacks into the Trainers of Hugging Face and Lightning."""

from __future__ import annotations

import ast

from shoal.check.calls import has_unpacking, keyword_of
from shoal.check.frameworks import LIGHTNING_PACKAGES, classes_of, is_hf_trainer
from shoal.check.instrument.patch import Patch
from shoal.check.module import Module, is_from
from shoal.core.errors import Refused


def add_hf_callback(module: Module, patch: Patch) -> None:
    calls = [c for c in module.all(ast.Call) if any(map(is_hf_trainer, classes_of(module, c)))]
    _add_to_all(patch, calls, "ShoalCallback")


def add_lightning_callback(module: Module, patch: Patch) -> None:
    calls = [
        c
        for c in module.all(ast.Call)
        if any(is_from(base, package, "Trainer") for base in classes_of(module, c) for package in LIGHTNING_PACKAGES)
    ]
    _add_to_all(patch, calls, "ShoalCallback()")


def _add_to_all(patch: Patch, calls: list[ast.Call], callback: str) -> None:
    # For a subclass of Trainer, `calls` has the calls that create instances, not its `super().__init__(…)`.
    for call in calls:
        if has_unpacking(call) and keyword_of(call, "callbacks") is None:
            raise Refused(
                f"The Trainer in line {call.lineno} unpacks its arguments (`**`), so they may already contain callbacks.",
                hint=f"Add {callback} to its callbacks yourself.",
            )
        _add(patch, call, callback)


def _add(patch: Patch, call: ast.Call, callback: str) -> None:
    given = keyword_of(call, "callbacks")
    if given is None:
        _add_argument(patch, call, f"callbacks=[{callback}]")
    elif isinstance(given, ast.List) and given.elts:
        patch.inline(given.elts[-1], f", {callback}", end=True)
    elif isinstance(given, ast.List) or (isinstance(given, ast.Constant) and given.value is None):
        patch.replace(given, f"[{callback}]")
    else:
        patch.inline(given, "[*(")
        patch.inline(given, f" or []), {callback}]", end=True)


def _add_argument(patch: Patch, call: ast.Call, text: str) -> None:
    """Add an argument to a call in the layout of the others: all on one line, or each on its own line."""
    arguments = [*call.args, *(k.value for k in call.keywords)]
    if not arguments:
        patch.inside(call, text)
        return
    last = max(arguments, key=lambda a: (a.end_lineno or 0, a.end_col_offset or 0))
    first_of_last = next((k for k in call.keywords if k.value is last), last)
    if first_of_last.lineno > call.lineno and (call.end_lineno or 0) > (last.end_lineno or 0):
        patch.inline(last, f",{patch.newline}{patch.indentation(first_of_last)}{text}", end=True)
    else:
        patch.inline(last, f", {text}", end=True)
