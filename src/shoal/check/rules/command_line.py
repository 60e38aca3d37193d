"""Rule that compares the arguments after `--` with the options of the script's argparse."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from shoal.check.arguments import Arguments, Option, arguments_of
from shoal.check.calls import keyword_of
from shoal.check.job_facts import JobFacts
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.core.checks import Severity
from shoal.core.names import did_you_mean

_NUMBER = re.compile(r"-\.?\d")
_KINDS = {"builtins.int": int, "builtins.float": float}


@rule(
    "unknown-argument",
    Severity.ERROR,
    why="argparse ends the script immediately.",
    fix="Correct the arguments after `--`; `python SCRIPT --help` lists the options.",
)
def unknown_argument(program: Program, asked: JobFacts) -> Iterator[Hit]:
    arguments = arguments_of(program, asked.args)
    if not arguments.sure or arguments.given is None or arguments.parser is None:
        return
    names = [name for option in arguments.options for name in option.names if name.startswith("--")]
    for word in _options_given(arguments.given):
        name = word.partition("=")[0]
        if arguments.match(name) is None and not _is_short(arguments, name) and name not in ("-h", "--help"):
            guess = did_you_mean(name, names)
            yield Hit(*arguments.parser, f"The script has no option {name}.{guess}")
    for option in arguments.options:
        yield from _wrong_value(arguments, option)


def _wrong_value(arguments: Arguments, option: Option) -> Iterator[Hit]:
    assert arguments.given is not None and arguments.parser is not None  # noqa: S101
    if option.is_positional:
        return
    text, name = arguments.text_given(option), option.names[0]
    is_data = option.dest == "data"  # a job with a dataset gets --data automatically
    if text is None and option.is_required and not is_data:
        yield Hit(option.module, option.call, f"The script needs {name}, but it is not given.")
    if text is None or not option.has_one_value:
        return
    kind = keyword_of(option.call, "type")
    convert = _KINDS.get(next(iter(option.module.origins(kind)), "")) if kind is not None else None
    choices = keyword_of(option.call, "choices")
    if convert is not None and not _fits(convert, text):
        yield Hit(option.module, option.call, f"{name} must be {_called(convert)}, not '{text}'.")
    elif convert is None and kind is None and isinstance(choices, (ast.List, ast.Tuple)):
        allowed = [c.value for c in choices.elts if isinstance(c, ast.Constant) and isinstance(c.value, str)]
        if len(allowed) == len(choices.elts) and text not in allowed:
            yield Hit(option.module, option.call, f"{name} must be {' or '.join(allowed)}, not '{text}'.")


def _options_given(words: tuple[str, ...]) -> Iterator[str]:
    for word in words:
        if word == "--":
            return
        if word.startswith("-") and len(word) > 1 and not _NUMBER.match(word) and " " not in word:
            yield word


def _is_short(arguments: Arguments, word: str) -> bool:
    """Check for short options with an attached value or repetition, such as `-n8` and `-vv`."""
    return not word.startswith("--") and any(
        word.startswith(n) for o in arguments.options for n in o.names if len(n) == 2
    )


def _fits(convert: type[int] | type[float], text: str) -> bool:
    try:
        convert(text)
    except ValueError:
        return False
    return True


def _called(convert: type[int] | type[float]) -> str:
    return "a whole number" if convert is int else "a number"
