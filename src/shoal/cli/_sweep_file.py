"""A sweep's options from a YAML file: its keys are the options' names, and what the command line says comes first."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cyclopts import App, Token
from cyclopts.argument import Argument, ArgumentCollection

from shoal.cli._output import out
from shoal.cli._session import session
from shoal.core.errors import MissingExtra, UsageError
from shoal.core.names import did_you_mean

SUFFIXES = (".yaml", ".yml")
_BY_NAME = ("param", "env", "secret")
"""NAME=VALUE each: those of other names go together."""
_HINT = f"{out.prog} sweep run --help"
_RULES = {
    "bool": (r"(?:true|True|false|False)$", "tTfF"),
    "int": (r"[-+]?\d+$", "-+0123456789"),
    "float": (r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?$", "-+.0123456789"),
}
"""Kind → how it is written, and the letters it may begin with."""
_PLAIN_RULES = (*_RULES, "timestamp")


def from_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """What `--file sweep.yaml` holds, for the arguments that are not given. Called by the parser."""
    by_key = {name.lstrip("-"): argument for argument in arguments for name in argument.names}
    name, entry = (_positional(arguments, word) for word in ("name", "entry"))
    tokens = by_key["file"].tokens
    path = Path(tokens[-1].value) if tokens else None
    if path is None or path.suffix not in SUFFIXES or (name.tokens and not path.is_file()):
        return  # a file that is not there is told by the command, if it comes so far
    found = read_sweep_file(path)
    known = {key for key in by_key if len(key) > 1 and key not in ("NAME", "ENTRY")} | {"name", "entry"}
    for key in found:
        if key not in known:
            raise UsageError(f"{path} has a key {key!r}, which is no option.{did_you_mean(key, known)}", hint=_HINT)
    tokens.clear()
    _fill_positional(path, found, name, entry)
    for key, value in found.items():
        if value is not None and key not in ("name", "entry"):
            _fill(by_key[key], key, _texts(path, key, value), str(path))


def read_sweep_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"There is no {path} here.", hint=_HINT) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    yaml = _yaml()
    try:
        found = yaml.load(text, Loader=_loader(yaml))
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
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
    """As typed."""
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


def _yaml() -> Any:
    try:
        return importlib.import_module("yaml")
    except ImportError:
        raise MissingExtra("To read a sweep from a file needs PyYAML.", hint="pip install pyyaml") from None


def _loader(yaml: Any) -> Any:
    """YAML as people write it, and its version 1.2 has it: 5e-4 is a number, 1:30 and `no` are not; a key given twice is a mistake."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            if twice := next((key for key in keys if keys.count(key) > 1), None):
                raise yaml.MarkedYAMLError(problem=f"{twice!r} is given twice", problem_mark=node.start_mark)
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        letter: [(tag, rule) for tag, rule in rules if tag.rpartition(":")[2] not in _PLAIN_RULES]
        for letter, rules in Loader.yaml_implicit_resolvers.items()
    }
    for kind, (rule, letters) in _RULES.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(rule), list(letters))
    return Loader
