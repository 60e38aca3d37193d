"""`shoal completion`: TAB completion of commands, options and names for bash, zsh and fish."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, cast

from cyclopts import App, Parameter

from shoal.cli.completion.scripts import COMMAND, SHELLS, Shell, script, script_path, startup_file
from shoal.cli.shared.output import out
from shoal.core.errors import UsageError

app = App(name="completion")


@app.command
def install(shell: Shell | None = None, /) -> None:
    """Install completion for your shell.

    Writes a small script below your home directory, which one line in ~/.bashrc
    or ~/.zshrc reads; fish needs no line. Commands, options and values are completed, and the names of jobs,
    datasets, checkpoints, machines and more, if the server is running.

    For example:

      shoal completion install
      shoal completion install zsh

    Parameters
    ----------
    shell
        Shell to install it for (default: yours, from $SHELL).
    """
    shell = shell or _own_shell()
    path = script_path(shell, out.prog)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script(shell, out.prog))
    changed = _read_at_startup(shell, path)
    found = {"shell": shell, "path": str(path), "startup_file": str(changed) if changed else None}
    out.show(found, lambda: _print_installed(shell, path, changed))


@app.command
def show(shell: Shell | None = None, /) -> None:
    """Print the completion script, for a place of your own.

    For example:

      shoal completion show bash | sudo tee /usr/share/bash-completion/completions/shoal
      shoal completion show fish > ~/.config/fish/completions/shoal.fish

    Parameters
    ----------
    shell
        Shell of the script (default: yours, from $SHELL).
    """
    out.write(script(shell or _own_shell(), out.prog))


@app.command(name=COMMAND, show=False)
def candidates(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
    """Print what may stand in place of the last word, one per line, with a tab before its description.

    The scripts of `shoal completion show` call it.

    For example:

      shoal completion candidates -- training logs ''

    Parameters
    ----------
    words
        Words of the command line after the program's name, after `--`; the last one is completed.
    """
    from shoal.cli.completion.complete import complete

    for value, text in complete(list(words)):
        print(f"{value}\t{text}" if text else value)


def _own_shell() -> Shell:
    name = Path(os.environ.get("SHELL", "")).name
    if name in SHELLS:
        return cast(Shell, name)
    raise UsageError(
        f"Your shell is unknown ($SHELL is {os.environ.get('SHELL', '')!r}).",
        hint=f"{out.prog} completion install bash",
    )


def _read_at_startup(shell: Shell, path: Path) -> Path | None:
    """Add the line that reads the script to the shell's startup file, once; return the file, or None if nothing was added."""
    file = startup_file(shell)
    if file is None:
        return None
    line = f"[ -r {shlex.quote(str(path))} ] && . {shlex.quote(str(path))}  # completion of {out.prog}\n"
    text = file.read_text() if file.exists() else ""
    if line in text:
        return None
    with file.open("a") as end:
        end.write(("" if not text or text.endswith("\n") else "\n") + line)
    return file


def _print_installed(shell: Shell, path: Path, changed: Path | None) -> None:
    added = f", and {changed} reads it" if changed else ""
    out.info(f"Completion for {shell} is in {path}{added}. New shells have it; this one after:")
    out.line(f"{'source' if shell == 'fish' else '.'} {shlex.quote(str(path))}")
