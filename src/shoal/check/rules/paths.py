"""Rules about paths that do not exist where the job runs, and about output that is lost after the job."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from shoal.check.arguments import Arguments, arguments_of
from shoal.check.calls import keyword_of
from shoal.check.conditions import never_runs
from shoal.check.frameworks import is_hf_trainer
from shoal.check.job_facts import JobFacts
from shoal.check.module import Module, is_from
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.check.texts import Text, Texts
from shoal.core.checks import Severity

_LOCAL = re.compile(r"/(?:(?:home|Users)/[^/\s]+|root|content|kaggle|gdrive|workspace)/\S|[A-Za-z]:[\\/]")
_KEPT = ("/output-checkpoint", "/output/", "/tmp", "/dev/", "/var/tmp")  # noqa: S108
_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".distcp", ".tar", ".bin")
_EXISTS = frozenset({"exists", "isfile", "isdir", "is_file", "is_dir", "is_mount", "lexists"})
_TEXT_METHODS = frozenset({"get", "getenv", "startswith", "replace"})
_MIRRORING = ("ShoalCallback", "NetmindTrainerCallback")


@rule(
    "local-path",
    Severity.WARNING,
    why="The path belongs to one machine and does not exist where the job runs.",
    fix="Push the data (`shoal dataset push NAME --file PATH`) and read /input/NAME, or make the path an argument.",
)
def local_path(program: Program, asked: JobFacts) -> Iterator[Hit]:
    arguments = arguments_of(program, asked.args)
    for module in program.modules:
        for node in module.all(ast.Constant):
            text = node.value if isinstance(node.value, str) else ""
            if _LOCAL.match(text) and "\n" not in text and not is_spare(module, node, arguments):
                yield Hit(module, node, f"'{text}' is a path on a personal machine.")


@rule(
    "outside-output",
    Severity.WARNING,
    why="All checkpoints in the output directory are kept; in the working directory, only the newest weights.",
    fix="Write below `os.environ.get('OUTPUT_DIR', '.')`, or /output-checkpoint.",
)
def outside_output(program: Program, asked: JobFacts) -> Iterator[Hit]:
    arguments = arguments_of(program, asked.args)
    mirrored = program.mentions(*_MIRRORING)
    for module in program.modules:
        texts = Texts(module, arguments)
        for call, target in _saves(module):
            text = texts.of(target)
            if text is None or not _is_lost(text) or (mirrored and _is_trainers(module, call)):
                continue
            if not never_runs(module, call, arguments):
                where = text.start if text.whole else f"{text.start}…"
                yield Hit(module, target, f"The checkpoint is written to '{where}' {_outcome(text)}.")


def _outcome(text: Text) -> str:
    """Describe what becomes of a checkpoint that is not in the output directory."""
    name = text.start.rpartition("/")[2]
    is_weights = not text.whole or "." not in name or name.endswith(_WEIGHTS)
    if text.start.startswith(("/", "~", "..")) or not is_weights:
        return "and will be lost"
    return "in the working directory, where only the newest weights are kept"


def _is_lost(text: Text) -> bool:
    return bool(text.start) and not f"{text.start}/".startswith(_KEPT) and "://" not in text.start


def _saves(module: Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the calls that write a model, with the expression of the path."""
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
    """Check whether the Hugging Face Trainer writes the files: our callbacks copy those to the output directory."""
    if _makes_arguments(module.called(call)):
        return True
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "save_model"
        and any(is_hf_trainer(o.removesuffix("()")) for o in module.origins(call.func.value))
    )


def is_spare(module: Module, node: ast.Constant, arguments: Arguments) -> bool:
    """Check whether a path may be unused: prose, an overridden default, a path that is tested for first, or a pattern."""
    inside: ast.AST = node
    for above in module.scopes.above(node):
        if isinstance(above, ast.Call) and ast.unparse(above.func).endswith(".add_argument"):
            option = next((o for o in arguments.options if o.call is above), None)
            return option is None or arguments.given is None or arguments.text_given(option) is not None
        if _is_aside(above, inside):
            return True
        inside = above
    return _is_tested_for(module, node)


def _is_aside(above: ast.AST, inside: ast.AST) -> bool:
    """Check whether a constant is not used as a path here, or only under a condition that is unknown."""
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


def _is_tested_for(module: Module, node: ast.Constant) -> bool:
    """Check whether the variable with the path is tested for existence anywhere."""
    statement = module.statement_of(node)
    names = {n.id for t in getattr(statement, "targets", []) for n in ast.walk(t) if isinstance(n, ast.Name)}
    asked = [c for c in module.all(ast.Call) if isinstance(c.func, ast.Attribute) and c.func.attr in _EXISTS]
    return any(isinstance(n, ast.Name) and n.id in names for call in asked for n in ast.walk(call))
