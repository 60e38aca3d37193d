"""Translation of `%%magics`, which apply to a whole cell: the cell is run as Python or by a program, written to a file, or
dropped."""

from __future__ import annotations

import re

from shoal.notebooks.model import Work
from shoal.notebooks.shell import expression

_AS_PYTHON = {
    "time": "kept without being timed",
    "prun": "kept without the profiler",
    "memit": "kept without being measured",
    "mprun": "kept without being measured",
    "debug": "kept without the debugger",
    "capture": "kept; its output goes to the log",
    "ipytest": "kept without pytest",
}
_PROGRAMS = {"bash": "bash", "sh": "sh", "shell": "bash", "python": "python", "python3": "python"}
_SHOWN = frozenset({"html", "HTML", "javascript", "js", "latex", "markdown", "svg", "SVG"})
_WRITES = frozenset({"writefile", "file"})


def split_cell_magic(source: str) -> tuple[str, str, int] | None:
    """Return the name and the rest of a `%%` line and its line number from 1, or None. Comments may precede it."""
    for number, line in enumerate(source.split("\n"), 1):
        if found := re.match(r"%%(\w+)\s*(.*)", line):
            return found[1], found[2].strip(), number
        if line.strip() and not line.lstrip().startswith("#"):
            return None
    return None


def translate_cell(work: Work, source: str, name: str, rest: str) -> str | None:
    """Return the body as Python to translate further, with the same line numbers; None if `work.python` is complete."""
    lines, at = source.split("\n"), work.line
    was, body = lines[at - 1], lines[at:]
    if name in _AS_PYTHON:
        captured = rest.split()[0] if name == "capture" and rest and not rest.startswith("-") else ""
        if captured and re.search(rf"\b{re.escape(captured)}\s*[.(]", work.shared.code):
            work.decide(
                was,
                f"{captured} would contain the output of the cell",
                "Do not read it, or assign the text in the code.",
            )
        work.turned(was, _AS_PYTHON[name])
        return "\n".join([*lines[: at - 1], "", *body])
    if name == "script":
        name, _, rest = rest.partition(" ")
        if name in ("false", "true", "echo"):
            work.dropped(was, "not run in the notebook either")
            return None
    if name in _PROGRAMS:
        _program(work, was, _PROGRAMS[name], rest, body)
    elif name in _WRITES:
        _file(work, was, rest, body)
    elif name in _SHOWN:
        work.dropped(was, "shows something in a browser")
    elif name == "timeit":
        work.dropped(was, "only measures time; the notebook kept none of its variables either")
    else:
        hint = "Write it in Python, or put it into its own file and run that with a shell line."
        work.decide(was, f"%%{name} is another language or an unknown magic", hint)
    return None


def _program(work: Work, was: str, program: str, rest: str, body: list[str]) -> None:
    if rest:
        hint = "Remove the options, or write it in Python with subprocess."
        return work.decide(was, f"the options of %%{program} ({rest}) work only in IPython", hint)
    work.python = _call("\n" * (work.line - 1), f"_nb.script({program!r}, ", body, ")")
    return work.turned(was, f"run by {program}")


def _file(work: Work, was: str, rest: str, body: list[str]) -> None:
    words = rest.split()
    append, path = "-a" in words, " ".join(w for w in words if w != "-a").strip("'\"")
    if not path:
        return work.decide(was, "it names no file", "Write the file's name after it.")
    ending = ", append=True)" if append else ")"
    work.shared.written.add(path.removesuffix(".py").partition("/")[0])
    start = f"_nb.write({expression(path, work.shared.known)}, "
    work.python = _call("\n" * (work.line - 1), start, body, ending)
    return work.turned(was, f"writes {path}")


def _call(before: str, start: str, body: list[str], end: str) -> list[str]:
    """Return a call with the body as a string argument, on the body's own lines if a plain literal can contain it."""
    text = "\n".join(body) + "\n"
    if "'''" in text or "\\" in text:
        made = f"{before}{start}{text!r}{end}".split("\n")
        return made + [""] * len(body)
    return f"{before}{start}'''\\\n{text}'''{end}".split("\n")
