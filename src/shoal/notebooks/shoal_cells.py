"""What a script made of a notebook calls in place of IPython. It travels with the script and needs nothing but Python."""

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
    """When the script ends with an error, also say in which cell of the notebook that is."""
    told = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if where := cell_of(script, _line_in(script, trace)):
            error.add_note(f"In cell {where[0]}, line {where[1]}, of {notebook}.")
        told(kind, error, trace)

    sys.excepthook = tell


def cell_of(script: str, line: int | None) -> tuple[int, int] | None:
    """The cell and the line in it that a line of the script comes from: each cell stands below its `# %%` line."""
    lines = Path(script).read_text("utf-8").splitlines()
    for at in range(min(line or 0, len(lines)) - 1, -1, -1):
        if lines[at].startswith("# %% cell "):
            return int(lines[at].split()[3]), (line or 0) - at - 1
    return None


def sh(command: str) -> int:
    """`!command`: like in the notebook, a failure is told and the script goes on."""
    sys.stdout.flush()
    code = subprocess.run([_shell(), "-c", command], env=_env()).returncode
    if code:
        print(f"exit code {code}: {command}", file=sys.stderr, flush=True)
    return code


def lines(command: str) -> list[str]:
    """`x = !command`."""
    argv = [_shell(), "-c", command]
    done = subprocess.run(argv, env=_env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode("utf-8", "replace").splitlines()


def script(program: str, text: str) -> None:
    """`%%bash` and its like: a failure is an error here as it was there."""
    sys.stdout.flush()
    argv = [sys.executable, "-"] if program == "python" else [program]
    subprocess.run(argv, input=text.encode(), env=_env(), check=True)


def no_screen() -> None:
    """`%matplotlib`: whether that is imported already, or later, or is not there at all."""
    os.environ["MPLBACKEND"] = "Agg"
    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].use("Agg")


def cd(folder: str) -> None:
    """`%cd`. Colab's /content is the folder the script was started in."""
    wanted = _before[-1] if folder == "-" else Path(folder or "~").expanduser()
    if wanted.is_relative_to("/content"):
        wanted = _start / wanted.relative_to("/content")
    here = Path.cwd()
    os.chdir(wanted)
    _before.append(here)


def write(path: str, text: str, *, append: bool = False) -> None:
    """`%%writefile`. Whole at once: other workers of the job run the same cell, and may be reading it."""
    target = Path(path).expanduser()
    if append:
        with target.open("a", encoding="utf-8") as file:
            file.write(text)
        return
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    aside.write_text(text, "utf-8")
    aside.replace(target)


def run(path: str, *arguments: str) -> dict[str, Any]:
    """`%run`: the names the other script leaves behind."""
    argv, sys.argv = sys.argv, [path, *arguments]
    try:
        return {k: v for k, v in runpy.run_path(path, run_name="__main__").items() if not k.startswith("__")}
    finally:
        sys.argv = argv


def wait(coroutine: Coroutine[Any, Any, None]) -> None:
    """A cell with `await` at its top. All such cells share a loop, so that what one starts another may await."""
    _loop().run_until_complete(coroutine)


def secret(name: str) -> str:
    """Colab's `userdata.get`."""
    try:
        return os.environ[name]
    except KeyError:
        raise KeyError(f"{name} is not set: start the job with --secret {name}=SECRET") from None


def display(*things: object, **_: object) -> None:
    """IPython's `display` where there is only text."""
    print(*things, sep="\n", flush=True)


def nothing(*things: Any, **_: object) -> Any:
    """Stands for what only a browser can show, and for clearing it."""
    return things[0] if things else None


def get_ipython() -> None:
    """As IPython's own answers outside of it."""


def _line_in(script: str, trace: TracebackType | None) -> int | None:
    """The innermost line of the script that the error passed through."""
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
    """`python`, `pip` and `torchrun` in a command are those of this interpreter."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
