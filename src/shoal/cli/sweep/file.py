"""Options of a sweep from a YAML file: its keys are option names; the command line overrides them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cyclopts import App, Token
from cyclopts.argument import Argument, ArgumentCollection

from shoal.cli.shared.output import out
from shoal.cli.shared.session import session
from shoal.cli.shared.yaml_file import read_yaml
from shoal.core.errors import UsageError
from shoal.core.names import did_you_mean

SUFFIXES = (".yaml", ".yml")
_BY_NAME = ("param", "env", "secret")
"""Options of the form NAME=VALUE: the command line overrides the same NAME only, and other names are combined."""
_HINT = f"{out.prog} sweep run --help"


def from_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill arguments that were not given from `--file sweep.yaml`. Called by the parser."""
    by_key = {name.lstrip("-"): argument for argument in arguments for name in argument.names}
    name, entry = (_positional(arguments, word) for word in ("name", "entry"))
    tokens = by_key["file"].tokens
    path = Path(tokens[-1].value) if tokens else None
    if path is None or path.suffix not in SUFFIXES or (name.tokens and not path.is_file()):
        return  # the command itself reports a missing file
    found = read_sweep_file(path)
    known = {key for key in by_key if len(key) > 1 and key not in ("NAME", "ENTRY")} | {"name", "entry"}
    for key in found:
        if key not in known:
            raise UsageError(f"{path} has an unknown option {key!r}.{did_you_mean(key, known)}", hint=_HINT)
    tokens.clear()
    _fill_positional(path, found, name, entry)
    for key, value in found.items():
        if value is not None and key not in ("name", "entry"):
            _fill(by_key[key], key, _texts(path, key, value), str(path))


def read_sweep_file(path: Path) -> dict[str, Any]:
    found = read_yaml(path, hint=_HINT).value
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise UsageError(f"{path} should be a mapping of options, such as `trials: 30`.", hint=_HINT)
    return found


def _fill_positional(path: Path, found: Mapping[str, Any], name: Argument, entry: Argument) -> None:
    given = [*name.tokens, *entry.tokens]
    if "name" in found and len(given) == (session.after_dashes or 0):
        name.tokens[:] = [Token(value=str(found["name"]), source=str(path))]
        entry.tokens[:] = [token.evolve(index=at) for at, token in enumerate(given)]
    if "entry" in found and not entry.tokens:
        words = found["entry"]
        words = shlex.split(words) if isinstance(words, str) else _texts(path, "entry", words)
        entry.tokens[:] = [Token(value=word, source=str(path), index=at) for at, word in enumerate(words)]


def _fill(argument: Argument, key: str, texts: list[str], source: str) -> None:
    given = list(argument.tokens)
    if given and key not in _BY_NAME:
        return
    tokens = [Token(keyword=f"--{key}", value=text, source=source) for text in texts]
    for token in given:
        same = (at for at, known in enumerate(tokens) if _called(known.value) == _called(token.value))
        at = next(same, len(tokens))
        tokens[at : at + 1] = [token]
    argument.tokens[:] = [token.evolve(index=at) for at, token in enumerate(tokens)]


def _texts(path: Path, key: str, value: Any) -> list[str]:
    """Return the values of an option as the texts that would be typed on the command line."""
    if isinstance(value, Mapping) and key in _BY_NAME:
        return list(_params(value)) if key == "param" else [f"{name}={_text(one)}" for name, one in value.items()]
    values = value if isinstance(value, list) else [value]
    if any(isinstance(one, Mapping | list) for one in values):
        raise UsageError(f"{path}: {key} should be a single value or a list of them.", hint=_HINT)
    return [_text(one) for one in values]


def _params(given: Mapping[str, Any]) -> Iterator[str]:
    from shoal.tune.space import param_text, read_axis

    for name, values in given.items():
        yield param_text(name, read_axis(name, values))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _called(text: str) -> str:
    return text.partition("=")[0].partition("@")[0].strip()


def _positional(arguments: ArgumentCollection, word: str) -> Argument:
    return next(argument for argument in arguments if argument.field_info.name == word and not argument.keys)
