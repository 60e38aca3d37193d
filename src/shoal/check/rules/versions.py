"""Rule about scripts written for older versions of Hugging Face's transformers than the job will have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from shoal.check.calls import keyword_of
from shoal.check.frameworks import classes_of, is_hf_trainer
from shoal.check.job_facts import JobFacts
from shoal.check.module import Module, is_from
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.core.checks import Severity

Version = tuple[int, ...]
_PACKAGE = "transformers"
_REQUIREMENTS = "requirements.txt"
_REQUIREMENT = re.compile(rf"\s*{_PACKAGE}\s*(?:\[[^\]]*\])?\s*([^#;]*)", re.IGNORECASE)
_BOUND = re.compile(r"(==|<=|<|~=)\s*([\d.]+)")


class _Gone(NamedTuple):
    version: Version
    """Version in which it was removed."""
    instead: str


_OF_TRAINER = {"tokenizer": _Gone((5,), "use `processing_class=`")}
_OF_ARGUMENTS = {
    "evaluation_strategy": _Gone((4, 46), "use `eval_strategy`"),
    "logging_dir": _Gone((5,), "use the variable TENSORBOARD_LOGGING_DIR"),
    "overwrite_output_dir": _Gone((5,), "remove it"),
    "no_cuda": _Gone((5,), "use `use_cpu`"),
    "per_gpu_train_batch_size": _Gone((5,), "use `per_device_train_batch_size`"),
    "per_gpu_eval_batch_size": _Gone((5,), "use `per_device_eval_batch_size`"),
}


@rule(
    "old-transformers",
    Severity.WARNING,
    why="Newer versions of transformers refuse it, and the script ends there.",
    fix="Pin transformers in requirements.txt, or change the line.",
)
def old_transformers(program: Program, asked: JobFacts) -> Iterator[Hit]:
    found = [*_in_code(program), *_in_arguments(program, asked)]
    if not found:
        return
    below = _upper_bound(program)
    for module, node, what, gone in found:
        if below is None or below > gone.version:
            pin = f"{_PACKAGE}<{_text(gone.version)}"
            yield Hit(
                module,
                node,
                f"{what} fits {pin} only.",
                fix=f"Add `{pin}` to {_REQUIREMENTS}, or {gone.instead}.",
            )


def _in_code(program: Program) -> Iterator[tuple[Module, ast.AST, str, _Gone]]:
    for module in program.modules:
        for call in module.all(ast.Call):
            classes = classes_of(module, call)
            if any(is_from(c, _PACKAGE, "Trainer", "Seq2SeqTrainer") and is_hf_trainer(c) for c in classes):
                # A class of the script may take the word itself.
                own = any(module.definition(c) for c in classes)
                names, kind = ({} if own else _OF_TRAINER), "Trainer"
            elif any(is_from(c, _PACKAGE, "TrainingArguments", "Seq2SeqTrainingArguments") for c in classes):
                names, kind = _OF_ARGUMENTS, "TrainingArguments"
            else:
                continue
            for name, gone in names.items():
                if (given := keyword_of(call, name)) is not None:
                    yield module, given, f"{kind}({name}=…)", gone


def _in_arguments(program: Program, asked: JobFacts) -> Iterator[tuple[Module, ast.AST, str, _Gone]]:
    """Yield the options on the command line, for scripts whose options are the fields of TrainingArguments."""
    for module, call in program.calls(_PACKAGE, "HfArgumentParser"):
        given = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in asked.args or () if word[:2] == "--"}
        if "TrainingArguments" in ast.unparse(call):
            for name, gone in _OF_ARGUMENTS.items():
                if name in given:
                    yield module, call, f"--{name}", gone


def _upper_bound(program: Program) -> Version | None:
    """Return the version below which the job's transformers is: by requirements.txt, or else by what is installed here."""
    for line in (program.source.read(_REQUIREMENTS) or "").splitlines():
        if (found := _REQUIREMENT.match(line)) and not re.match(r"[\w.-]", found[1]):
            bounds = [_bound(sign, version) for sign, version in _BOUND.findall(found[1])]
            return min(bounds, default=None)
    here = _installed()
    return _next(here) if here else None


def _bound(sign: str, text: str) -> Version:
    version = tuple(int(part) for part in text.strip(".").split(".") if part)
    if sign == "~=":
        return _next(version[:-1])
    return version if sign == "<" else _next(version)


def _next(version: Version) -> Version:
    return (*version[:-1], version[-1] + 1) if version else (1 << 30,)


def _installed() -> Version | None:
    try:
        parts = metadata.version(_PACKAGE).split(".")
    except metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in parts[:3] if part.isdigit())


def _text(version: Version) -> str:
    return ".".join(map(str, version))
