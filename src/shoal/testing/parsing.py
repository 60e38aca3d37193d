"""Faster parsing of many command lines in one process: the options of each command are computed once.

cyclopts reads the signature of every command on the path to the called one, up to five times per call. For a user that
happens once; for tests of hundreds of command lines it is most of the time.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast, get_type_hints
from unittest.mock import patch

import cyclopts.argument._argument
import cyclopts.field_info
from cyclopts import App, Parameter
from cyclopts.argument import Argument, ArgumentCollection


@contextmanager
def signatures_read_once() -> Iterator[None]:
    """Cache the options that cyclopts reads for each command, and give every parse its own copy."""
    original = App.assemble_argument_collection
    kept: dict[object, tuple[ArgumentCollection, object]] = {}

    def assemble(
        app: App, *, default_parameter: Parameter | None = None, parse_docstring: bool = False
    ) -> ArgumentCollection:
        def read() -> ArgumentCollection:
            return original(app, default_parameter=default_parameter, parse_docstring=parse_docstring)

        if default_parameter is not None:
            return read()
        frames = [list(frame) for frame in app.app_stack.stack]  # the apps whose defaults apply
        key = (id(app), parse_docstring, *(tuple(map(id, frame)) for frame in frames))
        if key not in kept:
            kept[key] = read(), (app, frames)  # a reference, so that the id stays in use
        return _unused(kept[key][0])

    hints = functools.cache(get_type_hints)
    with (
        patch.object(App, "assemble_argument_collection", assemble),
        patch.object(cyclopts.field_info, "get_type_hints", hints),
        # In a real command, pydantic is not imported yet when the command line is parsed, and so not used; here it is.
        patch.object(cyclopts.argument._argument, "parse_version", lambda _: (1,)),
    ):
        yield


_collection = cast(Callable[[Iterable[Argument]], ArgumentCollection], ArgumentCollection)


def _unused(collection: ArgumentCollection) -> ArgumentCollection:
    """Copy arguments without their tokens, and keep the links between them."""
    copies: dict[int, Argument] = {}

    def one(argument: Argument) -> Argument:
        if id(argument) not in copies:
            made: Any = copy.copy(argument)
            copies[id(argument)] = made
            made.tokens = []
            made.children = _collection(one(child) for child in argument.children)
        return copies[id(argument)]

    return _collection(one(argument) for argument in collection)
