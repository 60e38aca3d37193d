"""Copy of a script with the SDK's lines added."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

from shoal.check.frameworks import (
    ACCELERATE,
    FABRIC,
    HUGGING_FACE,
    LIGHTNING,
    NETMIND,
    PLAIN,
    SDK,
    TOPSPIN,
    TRAINER,
    frameworks_of,
)
from shoal.check.instrument.callbacks import add_hf_callback, add_lightning_callback
from shoal.check.instrument.loops import instrument_loop
from shoal.check.instrument.patch import Patch
from shoal.check.module import Module
from shoal.check.program import Program
from shoal.check.source import Source
from shoal.core.errors import Internal, Refused, UsageError

_OURS = {SDK, TRAINER, NETMIND, TOPSPIN}


@dataclass(slots=True)
class Instrumented:
    text: str
    framework: str
    notes: list[str] = field(default_factory=list)


def instrument(path: str, text: str) -> Instrumented:
    """Return the script with the SDK's lines; raise Refused with a hint if the place of a line is not certain."""
    try:
        module = Module(path, text)
    except SyntaxError as error:
        raise UsageError(f"{path}, line {error.lineno}: {error.msg}.", hint=f"python -m py_compile {path}") from None
    program = Program(Source(Path(), [path]), path, [module])
    known = frameworks_of(program)
    if set(known) & _OURS or program.imports("shoal"):
        how = next((name for name in known if name in _OURS), "Shoal")
        raise Refused(f"{path} is already instrumented ({how}).", hint=f"shoal check {path}")
    patch, notes = Patch(module), list[str]()
    if HUGGING_FACE in known:
        framework = HUGGING_FACE
        add_hf_callback(module, patch)
        _import(module, patch, "from shoal.integrations.hf import ShoalCallback")
    elif LIGHTNING in known:
        framework = LIGHTNING
        add_lightning_callback(module, patch)
        _import(module, patch, "from shoal.integrations.lightning import ShoalCallback")
    else:
        framework = next((name for name in (ACCELERATE, FABRIC) if name in known), PLAIN)
        notes = instrument_loop(module, patch, framework)
        _import(module, patch, "import shoal")
    done = patch.text()
    try:
        ast.parse(done)
    except SyntaxError as error:
        raise Internal(
            f"The instrumented copy of {path} is not valid Python (line {error.lineno}): {error.msg}."
        ) from None
    return Instrumented(done, framework, notes)


def _import(module: Module, patch: Patch, line: str) -> None:
    """Add an import below the imports at the top of the file."""
    last: ast.stmt | None = None
    for statement in module.tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            last = statement
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            break
    if last is None or (isinstance(last, ast.ImportFrom) and last.module == "__future__"):
        patch.at_top(line)
    else:
        patch.after(last, line)
