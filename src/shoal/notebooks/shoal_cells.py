"""Functions that a converted notebook calls instead of IPython. This file is sent with the script and needs only Python."""

from __future__ import annotations

import asyncio
import functools
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any

_start = Path.cwd()
_before = [_start]


def watch(script: str, notebook: str) -> None:
    """Add the notebook's cell and line to the error with which the script ends."""
    told = sys.excepthook

    def add_place(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if where := cell_of(script, _line_in(script, trace)):
            error.add_note(f"In cell {where[0]}, line {where[1]}, of {notebook}.")
        told(kind, error, trace)

    sys.excepthook = add_place


def cell_of(script: str, line: int | None) -> tuple[int, int] | None:
    """Return the cell, and the line in it, of a line of the script: each cell begins below its `# %%` line."""
    lines = Path(script).read_text("utf-8").splitlines()
    for at in range(min(line or 0, len(lines)) - 1, -1, -1):
        if lines[at].startswith("# %% cell "):
            return int(lines[at].split()[3]), (line or 0) - at - 1
    return None


def sh(command: str) -> int:
    """Run `!command`. As in the notebook, a failure is printed and the script continues."""
    sys.stdout.flush()
    code = subprocess.run([_shell(), "-c", command], env=_env()).returncode
    if code:
        print(f"exit code {code}: {command}", file=sys.stderr, flush=True)
    return code


def lines(command: str) -> list[str]:
    """Run the command of `x = !command` and return the lines of its output."""
    argv = [_shell(), "-c", command]
    done = subprocess.run(argv, env=_env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode("utf-8", "replace").splitlines()


def script(program: str, text: str) -> None:
    """Run the cell of `%%bash` and similar magics. A failure is an error, as in the notebook."""
    sys.stdout.flush()
    argv = [sys.executable, "-"] if program == "python" else [program]
    subprocess.run(argv, input=text.encode(), env=_env(), check=True)


def no_screen() -> None:
    """Replace `%matplotlib`: use the Agg backend, whether matplotlib is imported already, later, or not installed."""
    os.environ["MPLBACKEND"] = "Agg"
    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].use("Agg")


def cd(folder: str) -> None:
    """Replace `%cd`. Colab's /content is the folder in which the script was started."""
    wanted = _before[-1] if folder == "-" else Path(folder or "~").expanduser()
    if wanted.is_relative_to("/content"):
        wanted = _start / wanted.relative_to("/content")
    here = Path.cwd()
    os.chdir(wanted)
    _before.append(here)


def write(path: str, text: str, *, append: bool = False) -> None:
    """Replace `%%writefile`. The file is replaced atomically: other workers run the same cell and may be reading it."""
    target = Path(path).expanduser()
    if append:
        with target.open("a", encoding="utf-8") as file:
            file.write(text)
        return
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    aside.write_text(text, "utf-8")
    aside.replace(target)


def run(path: str, *arguments: str) -> dict[str, Any]:
    """Replace `%run`: run another script and return the names that it defines."""
    argv, sys.argv = sys.argv, [path, *arguments]
    try:
        return {k: v for k, v in runpy.run_path(path, run_name="__main__").items() if not k.startswith("__")}
    finally:
        sys.argv = argv


def wait(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a cell with top-level `await`. All such cells share one event loop, so that one can await tasks of another."""
    _loop().run_until_complete(coroutine)


def secret(name: str) -> str:
    """Replace Colab's `userdata.get` by an environment variable."""
    try:
        return os.environ[name]
    except KeyError:
        raise KeyError(f"{name} is not set: start the job with --secret {name}=SECRET") from None


def display(*things: object, **_: object) -> None:
    """Replace IPython's `display`: print the objects as text."""
    print(*things, sep="\n", flush=True)


def nothing(*things: Any, **_: object) -> Any:
    """Replace functions that show something in a browser or clear the output."""
    return things[0] if things else None


def get_ipython() -> None:
    """Return None, as IPython's own function does outside of IPython."""


def _line_in(script: str, trace: TracebackType | None) -> int | None:
    """Return the innermost line of the script in the traceback, or None."""
    found = None
    while trace is not None:
        if trace.tb_frame.f_globals.get("__file__") == script:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def _shell() -> str:
    return shutil.which("bash") or "/bin/sh"


def _env() -> dict[str, str]:
    """Return the environment with this interpreter's `python`, `pip` and `torchrun` first on the PATH."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
