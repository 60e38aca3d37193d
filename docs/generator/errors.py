"""docs/reference/errors.md: the error tree and the exit codes."""

from __future__ import annotations

from generator._markdown import prose, table
from shoal.cli.shared import errors
from shoal.cli.training import follow
from shoal.core.errors import BY_CODE, ShoalError

_EXITS = {
    0: "Done. With `--follow` or `training wait`: the job succeeded.",
    1: "The job failed or was stopped.",
    2: "The request is malformed; nothing was changed.",
    3: "It does not exist, or you have no access to it.",
    4: "Well-formed, but refused: a name is taken, no machine can run it, the disk is full, …",
    5: "Not signed in, or not allowed.",
    6: "The server did not answer.",
    7: "The operation did not finish in time.",
    errors.EXIT_BUG: "Something broke inside Shoal; the details are in the file named in the message.",
    errors.EXIT_INTERRUPTED: "Ctrl-C. While following a job this only detaches: the job continues.",
    errors.EXIT_BROKEN_PIPE: "The reader of a pipe closed it early (`shoal … | head`).",
}


def page() -> str:
    assert follow.DETACHED == errors.EXIT_INTERRUPTED  # noqa: S101
    missing = {c.exit_code for c in BY_CODE.values()} - _EXITS.keys()
    if missing:
        raise RuntimeError(f"exit codes without a meaning in {__name__}: {missing}")
    exits = table(["Exit code", "Meaning"], [(f"`{code}`", text) for code, text in sorted(_EXITS.items())])
    rows = [
        (f"`{c.code}`", f"`{c.__name__}`", str(c.http_status), str(c.exit_code), prose(c.__doc__ or ""))
        for c in BY_CODE.values()
        if c is not ShoalError
    ]
    return f"""# Errors and exit codes

Every failure is one line that says what is wrong and, where there is one, a hint with the command to run next. In scripts,
go by the exit code; over HTTP, by `code`. Both are stable; messages are for people and may change.

## Exit codes of the command line

{exits}
## Errors over HTTP

The body of every answer outside 2xx:

```json
{{"error": {{"code": "not_found", "message": "…", "hint": "shoal training list", "details": {{}}}}}}
```

{table(["Code", "Class", "HTTP", "Exit", "Default message"], rows)}
## The tree

```text
{_tree(ShoalError)}
```
"""


def _tree(cls: type[ShoalError], lead: str = "") -> str:
    lines = [cls.__name__] if not lead else []
    children = [c for c in cls.__subclasses__() if BY_CODE.get(c.code) is c]
    for number, child in enumerate(children):
        last = number == len(children) - 1
        lines.append(f"{lead}{'└── ' if last else '├── '}{child.__name__}")
        if below := _tree(child, lead + ("    " if last else "│   ")):
            lines.append(below)
    return "\n".join(lines)
