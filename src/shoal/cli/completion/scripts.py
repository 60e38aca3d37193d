"""The completion scripts of bash, zsh and fish: each asks the program itself what may follow the words that were typed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

Shell = Literal["bash", "zsh", "fish"]
SHELLS: tuple[str, ...] = get_args(Shell)
COMMAND = "candidates"
FILES = ":files"
"""First line of an answer that leaves the word to the shell's own completion of files."""

_BASH = """\
# Completion of PROG for bash. The program itself prints what may follow.
_PROG_complete() {
  local IFS=$'\\n' cur="${COMP_WORDS[COMP_CWORD]}" found
  COMPREPLY=()
  found=$(command PROG completion COMMAND -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null </dev/null) || return
  if [[ $found == FILES* ]]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$cur"))
  else
    COMPREPLY=($(cut -f1 <<<"$found"))
  fi
}
complete -F _PROG_complete PROG
"""
_ZSH = """\
#compdef PROG
# Completion of PROG for zsh. The program itself prints what may follow.
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_PROG_complete() {
  local -a found described
  local line
  found=("${(@f)$(command PROG completion COMMAND -- "${(@)words[2,CURRENT]}" 2>/dev/null </dev/null)}")
  if [[ $found[1] == FILES ]]; then
    _files
    return
  fi
  for line in $found; do
    described+=("${${line%%$'\\t'*}//:/\\\\:}${${(M)line%$'\\t'*}/$'\\t'/:}")
  done
  _describe PROG described
}
compdef _PROG_complete PROG
"""
_FISH = """\
# Completion of PROG for fish. The program itself prints what may follow.
function __PROG_complete
    set -l current (commandline -ct)
    set -l words (commandline -opc) "$current"
    set -l found (command PROG completion COMMAND -- $words[2..-1] 2>/dev/null </dev/null)
    if test "$found[1]" = FILES
        __fish_complete_path "$current"
    else
        printf '%s\\n' $found
    end
end
complete -c PROG -f -a '(__PROG_complete)'
"""
_SCRIPTS: dict[str, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: Shell, prog: str) -> str:
    """Return the script of a shell for a program of this name."""
    text = _SCRIPTS[shell].replace("PROG", prog).replace("COMMAND", COMMAND)
    return text.replace("FILES", FILES)


def script_path(shell: Shell, prog: str) -> Path:
    """Return the place of the script below the person's home."""
    if shell == "fish":
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path(config) / "fish" / "completions" / f"{prog}.fish"
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    if shell == "bash":
        return Path(data) / "bash-completion" / "completions" / prog
    return Path(data) / "shoal" / f"{prog}.zsh"


def startup_file(shell: Shell) -> Path | None:
    """Return the file that has to read the script; None for fish, which finds it by itself."""
    if shell == "fish":
        return None
    if shell == "bash":
        return Path.home() / ".bashrc"
    return Path(os.environ.get("ZDOTDIR") or Path.home()) / ".zshrc"
