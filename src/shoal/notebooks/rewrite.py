"""Rewriting of Python that works only in a notebook: Colab's modules, IPython's display, widgets, keyboard input.

Only top-level statements of a cell are changed. Code inside `if IN_COLAB:` or `try:` is not: there the notebook already handles
running elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from shoal.notebooks.magics import dataset_hint, translate_magic
from shoal.notebooks.model import Work
from shoal.notebooks.names import bound, memory_of_results

_WIDGETS = ("ipywidgets", "ipyleaflet", "bqplot", "pythreejs", "itables", "panel")
_ON_SCREEN = frozenset({"display"})
_ASKS = frozenset({"input", "getpass"})
_LOGINS = frozenset({"notebook_login", "interpreter_login"})
_TQDM = {"tqdm_notebook": "tqdm", "tnrange": "trange"}


def rewrite(work: Work, tree: ast.Module) -> None:
    """Change `work.python` in place, line for line."""
    changed: list[tuple[ast.stmt, str]] = []
    for statement in tree.body:
        work.line = _start(statement)[0]
        if (new := _changed(work, statement)) is not None:
            changed.append((statement, new))
    gone = {id(statement) for statement, _ in changed}
    left = [statement for statement in tree.body if id(statement) not in gone]
    calls = [n for statement in left for n in ast.walk(statement) if isinstance(n, ast.Call)]
    # From the end, so that earlier positions stay valid.
    for call in sorted(calls, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        _inside(work, call)
    for statement, new in reversed(changed):
        end = (statement.end_lineno or statement.lineno, statement.end_col_offset or 0)
        _replace(work, _start(statement), end, new)
    _warn(work, left)
    work.changes.sort(key=lambda change: change.line)


def _changed(work: Work, node: ast.stmt) -> str | None:
    """Return the replacement of a statement, or None to keep it."""
    for rule in _RULES:
        new = rule(work, node, ast.unparse(node).partition("\n")[0])
        if new is not None:
            return new
    return None


def _future(work: Work, node: ast.stmt, was: str) -> str | None:
    if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
        return None
    work.shared.future.append(was)
    work.turned(was, "moved to the script's top, where it has to be")
    return ""


def _imports(work: Work, node: ast.stmt, was: str) -> str | None:
    modules = _modules(node)
    names = bound(node)
    if any(m == "google.colab" or m.startswith("google.colab.") for m in modules):
        work.shared.colab |= names
        work.dropped(was, "only Colab has this module")
        return ""
    if any(m.partition(".")[0] in _WIDGETS for m in modules):
        work.shared.widgets |= names
        work.decide(was, "widgets need a person to use them", "Set the values in the code, or read them from sys.argv.")
        return ""
    if any(m.startswith("tqdm") for m in modules):
        return _tqdm(work, node, was)
    if isinstance(node, ast.ImportFrom) and node.module in ("IPython.display", "IPython.core.display", "IPython"):
        return _ipython(work, node, was)
    if any(m.partition(".")[0] == "IPython" for m in modules):
        work.shared.requirements.add("ipython")
        work.turned(was, "kept, with ipython in requirements.txt")
    return None


def _ipython(work: Work, node: ast.ImportFrom, was: str) -> str | None:
    ours = {"get_ipython"} if node.module == "IPython" else None
    if (ours is not None and any(a.name not in ours for a in node.names)) or any(a.name == "*" for a in node.names):
        work.shared.requirements.add("ipython")
        work.turned(was, "kept, with ipython in requirements.txt")
        return None
    work.turned(was, "replaced by text in the log" if ours is None else "returns None, as outside of a notebook")
    known = _ON_SCREEN | {"get_ipython"}
    return "; ".join(f"{a.asname or a.name} = _nb.{a.name if a.name in known else 'nothing'}" for a in node.names)


def _tqdm(work: Work, node: ast.stmt, was: str) -> str | None:
    changed = False
    if isinstance(node, ast.ImportFrom):
        changed = node.module in ("tqdm.notebook", "tqdm.autonotebook")
        for alias in node.names:
            if plain := _TQDM.get(alias.name):
                alias.name, alias.asname, changed = plain, alias.asname or alias.name, True
        node.module = "tqdm" if changed else node.module
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name in ("tqdm.notebook", "tqdm.autonotebook") and alias.asname:
                alias.name, changed = "tqdm", True
    if not changed:
        return None
    work.turned(was, "a bar of text")
    return ast.unparse(node)


def _colab(work: Work, node: ast.stmt, was: str) -> str | None:
    call = _call_of(node)
    if call is None or not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return None
    module, verb = call.func.value.id, call.func.attr
    if module not in work.shared.colab or (module, verb) == ("userdata", "get"):
        return None
    if module == "drive" and verb == "mount":
        why = "Google Drive is not available in a job: push what you read from it as a dataset"
        work.decide(was, why, dataset_hint("NAME"))
    elif module == "files" and verb == "upload":
        work.decide(was, "there is no browser to upload from: push the files as a dataset", dataset_hint("NAME"))
    elif module == "auth":
        hint = "shoal secret create NAME, then --secret ENV_NAME=NAME"
        work.decide(was, "there is no browser to sign in with: give the job a secret", hint)
    else:
        why = (
            "what a job writes to /output-checkpoint is kept and can be fetched" if module == "files" else "Colab's own"
        )
        work.dropped(was, why)
    return ""


def _widget(work: Work, node: ast.stmt, was: str) -> str | None:
    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & work.shared.widgets
    if not used:
        return None
    value_only = isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)
    work.shared.widgets |= set() if value_only else bound(node)
    what = "its value comes from a widget" if value_only else "widgets need a person to use them"
    work.decide(was, what, "Set the values in the code, or read them from sys.argv.")
    return ""


def _login(work: Work, node: ast.stmt, was: str) -> str | None:
    call = _call_of(node)
    name = getattr(call.func, "id", getattr(call.func, "attr", "")) if call else ""
    if name not in _LOGINS:
        return None
    hint = "shoal secret create hf, then --secret HF_TOKEN=hf"
    work.decide(was, "a job cannot ask you to sign in; it reads HF_TOKEN instead", hint)
    return ""


def _magic_call(work: Work, node: ast.stmt, was: str) -> str | None:
    """Return the replacement of `get_ipython().system('…')`, as in exported notebooks."""
    call = _call_of(node)
    if call is None or not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Call):
        return None
    asked = call.func.value.func
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if getattr(asked, "id", "") != "get_ipython" or not texts or len(texts) != len(call.args):
        return None
    verb = call.func.attr
    if verb in ("system", "getoutput", "sx"):
        return translate_magic(work, was, "system", texts[0])
    if verb == "magic":
        name, _, rest = texts[0].lstrip("%").partition(" ")
        return translate_magic(work, was, name, rest)
    return (
        translate_magic(work, was, texts[0], texts[1] if len(texts) > 1 else "") if verb == "run_line_magic" else None
    )


_RULES: tuple[Callable[[Work, ast.stmt, str], str | None], ...] = (
    _future,
    _imports,
    _colab,
    _magic_call,
    _login,
    _widget,
)


def _inside(work: Work, call: ast.Call) -> None:
    """Rewrite a call, at any depth: Colab's secrets, and questions to the user."""
    work.line = call.lineno
    func, was = call.func, ast.unparse(call)
    of = func.value.id if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) else None
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if of in work.shared.colab and name == "get" and len(call.args) == 1:
        asked = str(ast.literal_eval(call.args[0])) if isinstance(call.args[0], ast.Constant) else "NAME"
        end = (call.end_lineno or call.lineno, call.end_col_offset or 0)
        _replace(work, (call.lineno, call.col_offset), end, f"_nb.secret({ast.unparse(call.args[0])})")
        work.turned(was, "an environment variable", f"shoal secret create {asked}, then --secret {asked}={asked}")
    elif name in _ASKS and name not in work.shared.known - {"getpass"} and of in (None, "getpass"):
        work.decide(was, "a job cannot ask for input", "Take it from sys.argv, or from a secret: --secret NAME=SECRET")


def _warn(work: Work, left: list[ast.stmt]) -> None:
    """Record decisions for code that cannot be rewritten automatically."""
    tree = ast.Module(left, [])
    work.line = 1
    if names := memory_of_results(tree, set(work.shared.known)):
        why, hint = "a script has no memory of earlier results", "Give the result a name, and use that."
        work.decide(", ".join(sorted(names)), why, hint)
    ours = {id(a) for n in ast.walk(tree) if isinstance(n, ast.Call) and _is_ours(n) for a in ast.walk(n)}
    for node in (n for n in ast.walk(tree) if id(n) not in ours):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("/content/"):
            work.line = node.lineno
            is_drive = node.value.startswith("/content/drive")
            why = "Google Drive is not available in a job" if is_drive else "only Colab has /content"
            hint = dataset_hint(node.value) if is_drive else "Use a relative path, or a dataset at /input/NAME."
            return work.decide(node.value, why, hint)
    return None


def _is_ours(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "_nb"


def _modules(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _call_of(node: ast.stmt) -> ast.Call | None:
    value = node.value if isinstance(node, ast.Expr | ast.Assign) else None
    return value if isinstance(value, ast.Call) else None


def _start(statement: ast.stmt) -> tuple[int, int]:
    """Return the line and column of a statement, including its decorators."""
    decorators = getattr(statement, "decorator_list", [])
    return (decorators[0].lineno, 0) if decorators else (statement.lineno, statement.col_offset)


def _replace(work: Work, start: tuple[int, int], end: tuple[int, int], new: str) -> None:
    """Replace a range of the cell's code, keeping the number of lines. Columns are counted in bytes, as in `ast`."""
    first, last = start[0] - 1, end[0]
    before = work.python[first].encode()[: start[1]].decode()
    after = work.python[last - 1].encode()[end[1] :].decode()
    if not new and (before + after).partition("#")[0].strip():
        new = "pass"  # it shares its line
    work.python[first:last] = [f"{before}{new}{after}", *[""] * (last - first - 1)]
