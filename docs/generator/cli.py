"""docs/reference/cli.md: every command as its --help tells it."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cyclopts import App

from generator._markdown import anchor, prose, table
from shoal.cli.main import app
from shoal.cli.shared.aliases import TOP, VERBS

_TEXT = """# Command line

`shoal` and `flexai` are the same program. stdout is data, stderr is messages; in a pipe tables become plain columns.
[Exit codes](errors.md#exit-codes-of-the-command-line) tell scripts how it went.

## Options of every command

They go anywhere before `--`.

{everywhere}
## Aliases

Names from other programs work where Shoal has no command of that name. For every noun: {verbs}.

{aliases}
## Commands

{index}"""
_ARGUMENTS: dict[int, list[Any]] = {}
"""Arguments by the id of their command: to find them takes longer than to write a page."""


def page() -> str:
    found = list(commands())
    index = "\n".join(
        f"- [`shoal {' '.join(path)}`](#{anchor('shoal ' + ' '.join(path))}): {_summary(a)}" for path, a in found
    )
    aliases = table(("you type", "it runs"), [(f"`shoal {a}`", f"`shoal {' '.join(c)}`") for a, c in TOP.items()])
    verbs = ", ".join(f"`{verb}` is `{'` or `'.join(meant)}`" for verb, meant in VERBS.items())
    everywhere = _options(global_options(), app.meta)
    parts = [_TEXT.format(everywhere=everywhere, verbs=verbs, aliases=aliases, index=index) + "\n"]
    parts += [_command(path, a) for path, a in found]
    return "\n".join(parts)


def commands() -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command that does something, by group and name as in --help."""

    def walk(parent: App, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], App]]:
        for name in parent:
            if not name.startswith("-") and parent[name].show:
                below = parent[name]
                if below.default_command is not None:
                    yield (*path, name), below
                yield from walk(below, (*path, name))

    return walk(app, ())


def options_of(command: App) -> list[Any]:
    return [a for a in _arguments(command) if a.names[0].startswith("-")]


def global_options() -> list[Any]:
    return [a for a in _arguments(app.meta) if a.names[0].startswith("-")]


def help_of(argument: Any, command: App) -> str:
    """Return the help of an argument: from `Parameters` in the docstring, or else the help given with its type."""
    _, _, text = (inspect.getdoc(command.default_command) or "").partition("\nParameters\n----------\n")
    told = re.findall(r"^(\w+)\n((?:    .*\n?)+)", text, re.MULTILINE)
    return str(dict(told).get(argument.field_info.name) or argument.parameter.help or "")


def _arguments(command: App) -> list[Any]:
    if id(command) not in _ARGUMENTS:
        found = command.assemble_argument_collection(parse_docstring=True, default_parameter=app.default_parameter)
        _ARGUMENTS[id(command)] = list(found)
    return _ARGUMENTS[id(command)]


def _command(path: tuple[str, ...], command: App) -> str:
    about, examples = _docstring(command)
    words = " ".join(("shoal", *path))
    parts = [f"## {words}\n", f"```text\n{_usage(words, command)}\n```\n", f"{about}\n"]
    if examples:
        parts.append(f"```bash\n{examples}\n```\n")
    positional = [(a, help_of(a, command)) for a in _arguments(command) if not a.names[0].startswith("-")]
    if told := [(f"`{a.names[0]}`", prose(text)) for a, text in positional if text]:
        parts.append(table(["Argument", "Meaning"], told))
    if options := options_of(command):
        parts.append(_options(options, command))
    return "\n".join(parts)


def _options(options: list[Any], command: App) -> str:
    rows = []
    for a in options:
        names = ", ".join(f"`{n}`" for n in sorted(a.names, key=lambda n: not n.startswith("--")))
        if value := _value(a.hint):
            names += f" {value}"
        rows.append((names, prose(help_of(a, command))))
    return table(["Option", "Meaning"], rows)


def _usage(words: str, command: App) -> str:
    if command.usage:
        return command.usage.removeprefix("Usage: ").strip()
    parts = [words]
    for a in _arguments(command):
        if not a.names[0].startswith("-"):
            name = a.names[0] + ("..." if a.field_info.kind is inspect.Parameter.VAR_POSITIONAL else "")
            parts.append(name if a.required else f"[{name}]")
    return " ".join([*parts, *(["[OPTIONS]"] if options_of(command) else [])])


def _value(hint: Any) -> str:
    """Return the placeholder for an option's value; empty for a switch."""
    if get_origin(hint) is list:
        return _value(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(hint))
    inner = [a for a in get_args(hint) if a is not type(None)]
    if inner:
        return _value(inner[0])
    return {bool: "", int: "N", Path: "PATH"}.get(hint, "TEXT")


def _docstring(command: App) -> tuple[str, str]:
    """Return the text before the parameters, and the examples, of a command's docstring."""
    text = inspect.getdoc(command.default_command) or ""
    text = text.split("\nParameters\n")[0]
    about, *rest = re.split(r"\n(?:For example|Examples):\n", text, maxsplit=1)
    examples = rest[0] if rest else ""
    paragraphs = [prose(p) for p in about.strip().split("\n\n")]
    return "\n\n".join(paragraphs), textwrap.dedent(examples).strip()


def _summary(command: App) -> str:
    return _docstring(command)[0].split("\n\n")[0]
