"""Translation of IPython's lines (`%magics`, `!shell`, `help?` and `x = !shell`) to Python in the same place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from shoal.notebooks.commands import translate_shell
from shoal.notebooks.lines import ASSIGNED, Piece
from shoal.notebooks.model import Work
from shoal.notebooks.shell import expression

_SHELL_ALIASES = frozenset(
    {"ls", "ll", "cat", "cp", "mv", "mkdir", "rm", "rmdir", "sx", "system", "less", "more", "man"}
)
_PACKAGES = frozenset({"pip", "pip3", "conda", "mamba", "micromamba", "uv"})
_RUNS_REST = frozenset({"time", "prun", "lprun", "memit", "mprun"})
_DROPPED = {
    "only helps when typing in a notebook": "autoreload load_ext reload_ext unload_ext config pdb debug xmode colors history hist recall rerun"
    " save edit load loadpy page pastebin precision pprint quickref alias automagic autocall lsmagic magic macro bookmark notebook doctest_mode"
    " autosave rehashx unalias pycat gui logstart logstop logon logoff dhist dirs pushd popd tb unset_env reload_kernel",
    "only shows something": "who whos who_ls pinfo pinfo2 pdef pdoc pfile psource psearch pwd colab_version",
    "only measures time": "timeit mprof",
    "is about the notebook's memory; a script starts empty": "reset reset_selective xdel",
    "is Colab's choice of a version; put it into requirements": "tensorflow_version",
    "serves a page; the job's page has the charts": "tensorboard aim wandb",
}
_WHY_DROPPED = {name: why for why, names in _DROPPED.items() for name in names.split()}
_INLINE = "A job has no screen. Keep figures with plt.savefig(…), or run.log_figure(…) to see them on the job's page."
_PYLAB = (
    "_nb.no_screen(); import numpy; from matplotlib import pylab, mlab, pyplot; "
    "np = numpy; plt = pyplot; from pylab import *; from numpy import *"
)


def translate_line(work: Work, piece: Piece) -> str:
    """Return one line of Python, without indentation, for an IPython line; '' if nothing remains."""
    was = command = piece.command
    if found := ASSIGNED.match(command):
        return _assigned(work, was, found[1].strip(), found[2].strip())
    if command.startswith("?") or command.rstrip("; ").endswith("?"):
        work.dropped(was, "only shows help")
        return ""
    if command.startswith("!"):
        return translate_shell(work, was, command.lstrip("!").strip())
    if command.startswith("%%"):
        work.decide(was, "a `%%` line must be the first in its cell", "Move it to the top of the cell.")
        return ""
    name, _, rest = command.lstrip("%").strip().partition(" ")
    return translate_magic(work, was, name, rest.strip())


def translate_magic(work: Work, was: str, name: str, rest: str) -> str:
    """Return one line of Python for `%name rest`; '' if nothing remains."""
    if name in _PACKAGES:
        return translate_shell(work, was, f"{name} {rest}")
    if name in _SHELL_ALIASES:
        return translate_shell(work, was, rest if name in ("sx", "system") else f"{name.replace('ll', 'ls -l')} {rest}")
    if name in _RUNS_REST:
        return _runs_rest(work, was, name, rest)
    if act := _TURNED.get(name):
        return act(work, was, rest)
    if why := _WHY_DROPPED.get(name):
        work.dropped(was, why)
    else:
        work.decide(was, f"%{name} is an unknown magic", "Write it in Python, or delete the line.")
    return ""


def _assigned(work: Work, was: str, target: str, command: str) -> str:
    """Return one line of Python for `x = !shell` or `x = %magic`."""
    known = work.shared.known
    if command.startswith("!"):
        work.turned(was, "a list of the lines that the shell prints")
        return f"{target} = _nb.lines({expression(command.lstrip('!').strip(), known)})"
    name, _, rest = command[1:].partition(" ")
    if name in ("sx", "system"):
        return _assigned(work, was, target, f"!{rest}")
    value = {"pwd": "os.getcwd()", "env": f"os.environ[{rest.strip()!r}]" if rest.strip() else "dict(os.environ)"}.get(
        name
    )
    if value is not None:
        work.turned(was, value)
        return f"import os; {target} = {value}"
    if name == "time":
        work.turned(was, "kept without being timed")
        return f"{target} = {rest}"
    work.decide(was, f"the result of %{name} exists only in IPython", "Write it in Python, or delete the line.")
    return ""


def _runs_rest(work: Work, was: str, name: str, rest: str) -> str:
    bare = re.sub(r"^(?:-\w+(?:\s+[\w.]+(?=\s+-|\s+\w+\())?\s+)*", "", rest) if rest.startswith("-") else rest
    if bare:
        work.turned(was, f"kept without %{name}")
    else:
        work.dropped(was, "there is nothing to run in it")
    return bare


def _cd(work: Work, was: str, rest: str) -> str:
    folder = rest.removeprefix("-q").strip().strip("'\"")
    if folder.startswith("/content/drive"):
        work.decide(was, "Google Drive is not available in a job: push the folder as a dataset", dataset_hint(folder))
        return ""
    work.turned(was, "os.chdir")
    return f"_nb.cd({expression(folder, work.shared.known)})"


def _env(work: Work, was: str, rest: str) -> str:
    found = re.match(r"(\w+)(?:\s*=\s*|\s+)(.+)", rest)
    if found is None:
        work.dropped(was, "only shows something")
        return ""
    work.turned(was, "os.environ")
    return f"import os; os.environ[{found[1]!r}] = {expression(found[2].strip(), work.shared.known)}"


def _matplotlib(work: Work, was: str, rest: str) -> str:
    if rest.strip() in ("--list", "-l"):
        work.dropped(was, "only shows something")
        return ""
    work.turned(was, "figures are drawn without a window", _INLINE)
    return "_nb.no_screen()"


def _pylab(work: Work, was: str, rest: str) -> str:
    work.turned(was, "replaced by the imports that it makes", _INLINE)
    return _PYLAB


def _run(work: Work, was: str, rest: str) -> str:
    words = [w for w in _split(rest) if w not in ("-i", "-t", "-e", "-n")]
    if not words or words[0].endswith(".ipynb") or words[0].startswith("-"):
        why = "it runs another notebook" if words and words[0].endswith(".ipynb") else "its options are IPython's"
        work.decide(was, why, "Put its cells into this one, or convert it: shoal notebook convert FILE -o DIR")
        return ""
    work.turned(was, "runs the other script and imports its names", "Send the folder it is in: --dir FOLDER")
    return f"globals().update(_nb.run({', '.join(expression(word, work.shared.known) for word in words)}))"


def _store(work: Work, was: str, rest: str) -> str:
    if "-r" in rest.split():
        work.decide(was, "it reads what another notebook stored here", "Push it as a dataset: shoal dataset push NAME")
    else:
        work.dropped(was, "it stores variables for other notebooks; a job keeps what is in /output-checkpoint")
    return ""


_TURNED: dict[str, Callable[[Work, str, str], str]] = {
    "cd": _cd,
    "env": _env,
    "set_env": _env,
    "matplotlib": _matplotlib,
    "pylab": _pylab,
    "run": _run,
    "store": _store,
}


def dataset_hint(path: str) -> str:
    """Return the hint to push a folder of a Drive or disk as a dataset."""
    found = re.match(r"/content/drive/(?:MyDrive|My Drive|Shareddrives/[^/]+)/([^/]+)", path)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", found[1]).strip("-._")[:63] if found else "NAME"
    return f"shoal dataset push {name} --file FOLDER, then --dataset {name} and /input/{name} in the code"


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
