"""Find what may stand in place of the last word of a command line: commands, options, their values, and names on the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cyclopts import App

from shoal.cli.completion.names import KINDS_OF_OPTIONS, kind_of_argument, names
from shoal.cli.completion.scripts import FILES

Candidate = tuple[str, str]
"""A value and its description."""


def complete(words: Sequence[str]) -> list[Candidate]:
    """Return the candidates for the last word. A single `FILES` means that the shell completes file names itself."""
    from shoal.cli.main import app
    from shoal.cli.shared.aliases import expand

    *before, current = list(words) or [""]
    if "--" in before:
        return [(FILES, "")]  # a script and its arguments
    place = _Place(app, _global_options(app))
    for word in expand(app, place.without_globals(before)) if before else ():
        place.step(word)
    return [(value, text) for value, text in place.candidates(current) if value.startswith(current) or value == FILES]


class _Place:
    """Place in the tree of commands that the words lead to, and the option that waits for its value there."""

    def __init__(self, app: App, options: dict[str, Any]):
        self.app, self.globals = app, options
        self.chain: list[str] = []
        self.waiting: tuple[str, Any] | None = None
        """The option typed last, if its value is still missing."""
        self.given = 0
        """Number of arguments without an option."""
        self.arguments: list[Any] = []

    def without_globals(self, words: Sequence[str]) -> list[str]:
        """Return the words from the first command on, and note an option of every command that waits for its value."""
        left = list(words)
        while left and left[0].startswith("-"):
            option = self.globals.get(left.pop(0))
            if option is not None and _needs_value(option) and left:
                left.pop(0)
        if not left and len(words) and (option := self.globals.get(words[-1])) is not None and _needs_value(option):
            self.waiting = (words[-1], option)
        return left

    def step(self, word: str) -> None:
        """Go one word further."""
        if self.waiting is not None:
            self.waiting = None
        elif word.startswith("-"):
            option = self._options().get(word)
            self.waiting = (word, option) if option is not None and _needs_value(option) else None
        elif not self.given and word in self.app:
            self.app = self.app[word]
            self.chain.append(word)
            self.arguments = []
        else:
            self.given += 1

    def candidates(self, current: str) -> Iterator[Candidate]:
        if self.waiting is not None:
            yield from self._values(*self.waiting)
        elif current.startswith("-"):
            for name, option in self._options().items():
                if name.startswith("--") and not _is_negative(option, name):
                    yield name, _first_line(option.parameter.help)
            yield "--help", "Show the help of this command."
        elif _has_commands(self.app):
            if not self.given:
                yield from _commands(self.app, current)
        else:
            yield from self._positional()

    def _positional(self) -> Iterator[Candidate]:
        places = [a for a in self._arguments() if a.index is not None]
        if not places:
            return
        argument = places[min(self.given, len(places) - 1)]
        if self.given >= len(places) and argument.token_count() != (1, True):
            return
        yield from self._values_of(argument, kind_of_argument(self.chain, argument.field_info.name))

    def _values(self, name: str, option: Any) -> Iterator[Candidate]:
        yield from self._values_of(option, KINDS_OF_OPTIONS.get(name))

    def _values_of(self, argument: Any, kind: str | None) -> Iterator[Candidate]:
        if choices := argument.get_choices():
            yield from ((str(choice), "") for choice in choices)
        elif kind is None:
            yield FILES, ""
        else:
            yield from names(kind)

    def _options(self) -> dict[str, Any]:
        return {name: a for a in self._arguments() for name in a.names if name.startswith("-")} | self.globals

    def _arguments(self) -> list[Any]:
        if not self.arguments and self.app.default_command is not None:
            self.arguments = [
                a for a in self.app.assemble_argument_collection(parse_docstring=True) if a.parse and a.show
            ]
        return self.arguments


def _global_options(app: App) -> dict[str, Any]:
    return {n: a for a in app.meta.assemble_argument_collection() for n in a.names if n.startswith("-")}


def _has_commands(app: App) -> bool:
    return any(not name.startswith("-") for name in app)


def _commands(app: App, prefix: str) -> Iterator[Candidate]:
    """Yield the visible commands below an app. The others are not imported, which would take a second."""
    for name in app:
        if name.startswith(prefix) and not name.startswith("-") and app[name].show:
            yield name, _first_line(app[name].help)


def _needs_value(option: Any) -> bool:
    return bool(option.token_count() != (0, False))


def _is_negative(option: Any, name: str) -> bool:
    return name in option.negatives


def _first_line(text: object) -> str:
    return str(text or "").strip().partition("\n")[0]
