"""Paths that exist here and not where the job runs, or that nothing is kept from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from shoal.check.arguments import Arguments, arguments_of
from shoal.check.asked import Asked
from shoal.check.calls import keyword_of
from shoal.check.frameworks import is_hf_trainer
from shoal.check.module import Module, is_from
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.check.texts import Text, Texts
from shoal.core.checks import Severity

_LOCAL = re.compile(r"/(?:(?:home|Users)/[^/\s]+|root|content|kaggle|gdrive|workspace)/\S|[A-Za-z]:[\\/]")
_KEPT = ("/output-checkpoint", "/output/", "/tmp", "/dev/", "/var/tmp")  # noqa: S108
_EXISTS = frozenset({"exists", "isfile", "isdir", "is_file", "is_dir", "is_mount", "lexists"})
_TEXT_METHODS = frozenset({"get", "getenv", "startswith", "replace"})
_MIRRORING = ("ShoalCallback", "NetmindTrainerCallback")


@rule(
    "local-path",
    Severity.WARNING,
    why="That path is of one machine; where the job runs it does not exist.",
    fix="Push the data (`shoal dataset push NAME --file PATH`) and read /input/NAME, or take the path as an argument.",
)
def local_path(program: Program, asked: Asked) -> Iterator[Hit]:
    arguments = arguments_of(program, asked.args)
    for module in program.modules:
        for node in module.all(ast.Constant):
            text = node.value if isinstance(node.value, str) else ""
            if _LOCAL.match(text) and "\n" not in text and not is_spare(module, node, arguments):
                yield Hit(module, node, f"'{text}' is a path of somebody's machine.")


@rule(
    "outside-output",
    Severity.WARNING,
    why="Every checkpoint in the output directory is kept; of the working directory, only the newest state of weights.",
    fix="Write below `os.environ.get('OUTPUT_DIR', '.')`, or /output-checkpoint.",
)
def outside_output(program: Program, asked: Asked) -> Iterator[Hit]:
    arguments = arguments_of(program, asked.args)
    mirrored = program.mentions(*_MIRRORING)
    for module in program.modules:
        texts = Texts(module, arguments)
        for call, target in _saves(module):
            text = texts.of(target)
            if text is None or not _is_lost(text) or (mirrored and _is_trainers(module, call)):
                continue
            if not arguments.rules_out(module, call):
                where = text.start if text.whole else f"{text.start}…"
                yield Hit(module, target, f"The checkpoint is written to '{where}', and lost.")


def _is_lost(text: Text) -> bool:
    return bool(text.start) and not f"{text.start}/".startswith(_KEPT) and "://" not in text.start


def _saves(module: Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Calls that write a model, and where to."""
    for call in module.all(ast.Call):
        called = module.called(call)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if all(is_from(o, "torch", "save") or is_from(o, "safetensors", "save_file", "save_model") for o in called):
            target = call.args[1] if len(call.args) > 1 else keyword_of(call, "f")
        elif _makes_arguments(called):
            saves = keyword_of(call, "save_strategy")
            never = isinstance(saves, ast.Constant) and saves.value == "no"
            target = None if never else call.args[0] if call.args else keyword_of(call, "output_dir")
        elif method in ("save_pretrained", "save_model", "save_checkpoint") and not _is_nmp(called):
            target = call.args[0] if call.args else keyword_of(call, "save_directory") or keyword_of(call, "output_dir")
        else:
            continue
        if target is not None:
            yield call, target


def _makes_arguments(called: frozenset[str]) -> bool:
    return all(is_from(o, "transformers", "TrainingArguments", "Seq2SeqTrainingArguments") for o in called)


def _is_nmp(called: frozenset[str]) -> bool:
    return any(".nmp." in origin for origin in called)


def _is_trainers(module: Module, call: ast.Call) -> bool:
    """Our callbacks bring what the Hugging Face Trainer writes to where it is kept."""
    if _makes_arguments(module.called(call)):
        return True
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "save_model"
        and any(is_hf_trainer(o.removesuffix("()")) for o in module.origins(call.func.value))
    )


def is_spare(module: Module, node: ast.Constant, arguments: Arguments) -> bool:
    """Prose, a default that the command line overrides, a path looked for before it is used, a pattern to compare with."""
    inside: ast.AST = node
    for above in module.scopes.above(node):
        if isinstance(above, ast.Call) and ast.unparse(above.func).endswith(".add_argument"):
            option = next((o for o in arguments.options if o.call is above), None)
            return option is None or arguments.given is None or arguments.text_given(option) is not None
        if _is_aside(above, inside):
            return True
        inside = above
    return _is_looked_for(module, node)


def _is_aside(above: ast.AST, inside: ast.AST) -> bool:
    """It is not used as a path here, or only if something holds, and nobody knows whether it does."""
    match above:
        case ast.Expr(value=ast.Constant()) | ast.Compare():
            return True
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in _EXISTS or name in _TEXT_METHODS
        case ast.Try():
            return bool(above.handlers)
        case ast.If() | ast.IfExp():
            return inside is not above.test and "__name__" not in ast.unparse(above.test)
    return False


def _is_looked_for(module: Module, node: ast.Constant) -> bool:
    """The name it is given is asked whether it exists."""
    statement = module.statement_of(node)
    names = {n.id for t in getattr(statement, "targets", []) for n in ast.walk(t) if isinstance(n, ast.Name)}
    asked = [c for c in module.all(ast.Call) if isinstance(c.func, ast.Attribute) and c.func.attr in _EXISTS]
    return any(isinstance(n, ast.Name) and n.id in names for call in asked for n in ast.walk(call))
