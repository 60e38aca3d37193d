"""Rules about code that needs a person or a screen, which a job does not have, and about unguarded spawns."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shoal.check.calls import keyword_of
from shoal.check.job_facts import JobFacts
from shoal.check.module import Module
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.core.checks import Severity

_ASKS = frozenset({"builtins.input", "getpass.getpass", "builtins.breakpoint", "pdb.set_trace", "ipdb.set_trace"})
_WINDOWS = frozenset({"cv2.imshow", "cv2.waitKey", "turtle.done", "tkinter.Tk"})
_SHOWS = frozenset({"matplotlib.pyplot.show", "plotly.io.show"})
_SCREENS = frozenset({"TkAgg", "Qt5Agg", "QtAgg", "GTK3Agg", "WXAgg", "MacOSX"})
_FRESH = frozenset({"spawn", "forkserver"})


@rule(
    "asks-for-input",
    Severity.ERROR,
    why="A job's stdin is empty, so this raises EOFError and ends the job.",
    fix="Pass the value as an argument or as an environment variable (`--env`, `--secret`).",
)
def waits_for_input(program: Program, asked: JobFacts) -> Iterator[Hit]:
    for module, call, name in _calls(program, _ASKS):
        if not module.is_tried(call) and not _is_optional(module, call):
            yield Hit(module, call, f"{name} waits for keyboard input.")


@rule(
    "opens-window",
    Severity.ERROR,
    why="There is no screen where the job runs.",
    fix="Save it to a file, or log it with the run: `run.log_figure(name, figure)`, `run.log_image(name, image)`.",
)
def opens_window(program: Program, asked: JobFacts) -> Iterator[Hit]:
    for module, call, name in _calls(program, _WINDOWS):
        if not module.is_tried(call) and not _is_optional(module, call):
            yield Hit(module, call, f"{name} opens a window, which fails in a job.")
    for module, call, name in _calls(program, _SHOWS):
        yield Hit(module, call, f"{name} has no effect in a job.", severity=Severity.HINT)
    for module, call, name in _calls(program, frozenset({"matplotlib.use"})):
        given = call.args[0] if call.args else keyword_of(call, "backend")
        if isinstance(given, ast.Constant) and given.value in _SCREENS:
            yield Hit(module, call, f"{name}('{given.value}') needs a screen.", fix="Use `matplotlib.use('Agg')`.")


@rule(
    "unguarded-spawn",
    Severity.ERROR,
    why="Spawned processes import the script again. Without `if __name__ == '__main__':` each starts the training again, and "
    "Python raises an error.",
    fix="Move the code that starts the training below `if __name__ == '__main__':`.",
)
def unguarded_spawn(program: Program, asked: JobFacts) -> Iterator[Hit]:
    entry = next((m for m in program.modules if m.path == program.entry), None)
    if entry is None:
        return
    for call in entry.all(ast.Call):
        if _starts_fresh(entry, call) and _runs_at_import(entry, call):
            yield Hit(
                entry,
                call,
                f"{ast.unparse(call.func)} starts processes outside of `if __name__ == '__main__':`.",
            )


def _starts_fresh(module: Module, call: ast.Call) -> bool:
    """Check whether a call starts workers that are spawned, not forked, by its own arguments or a setting of the file."""
    called = module.called(call)
    if called and all(o in ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes") for o in called):
        return True
    if not called or not all(o.rpartition(".")[2] == "DataLoader" for o in called):
        return False
    workers = keyword_of(call, "num_workers")
    if not (isinstance(workers, ast.Constant) and isinstance(workers.value, int) and workers.value > 0):
        return False
    context = keyword_of(call, "multiprocessing_context")
    return (isinstance(context, ast.Constant) and context.value in _FRESH) or _file_spawns(module)


def _file_spawns(module: Module) -> bool:
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "set_start_method"
        and any(isinstance(a, ast.Constant) and a.value in _FRESH for a in call.args)
        for call in module.all(ast.Call)
    )


def _runs_at_import(module: Module, node: ast.AST) -> bool:
    for above in module.scopes.above(node):
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            return False
        if isinstance(above, ast.If) and "__name__" in ast.unparse(above.test):
            return False
    return True


def _is_optional(module: Module, node: ast.AST) -> bool:
    """Check whether a node runs only under a condition, whose value is unknown."""
    return any(
        isinstance(above, (ast.If, ast.IfExp)) and "__name__" not in ast.unparse(above.test)
        for above in module.scopes.above(node)
    )


def _calls(program: Program, names: frozenset[str]) -> Iterator[tuple[Module, ast.Call, str]]:
    for module in program.modules:
        for call in module.all(ast.Call):
            called = module.called(call)
            if called and called <= names:
                yield module, call, ast.unparse(call.func)
