"""YAML files that people write: read as YAML 1.2, with the lines of their keys for error messages."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import MissingExtra, UsageError

_RULES = {
    "bool": (r"(?:true|True|false|False)$", "tTfF"),
    "int": (r"[-+]?\d+$", "-+0123456789"),
    "float": (r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?$", "-+.0123456789"),
}
"""Kind of value → its regular expression, and the characters it can begin with."""
_PLAIN_RULES = (*_RULES, "timestamp")
_NOT_TEXT = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:null")


@dataclass(frozen=True, slots=True)
class YamlFile:
    """Content of a YAML file."""

    value: Any
    root: Any
    """The tree of nodes, or None for an empty file."""

    def line_of(self, keys: Sequence[str | int]) -> int:
        """Return the line of the innermost of these keys that is in the file; keys that are not in it are skipped."""
        node, line = self.root, 1
        for key in keys:
            if isinstance(key, int) and node.id == "sequence" and key < len(node.value):
                node = node.value[key]
                line = node.start_mark.line + 1
            elif node.id == "mapping":
                for key_node, value in node.value:
                    if key_node.value == str(key):
                        node, line = value, key_node.start_mark.line + 1
                        break
        return line


def read_yaml(path: Path, *, hint: str, numbers: bool = True) -> YamlFile:
    """Read a YAML file; raise UsageError if it cannot be read. Without `numbers`, these stay text as it was typed."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    yaml = _yaml()
    loader = _loader(yaml, numbers)(text)
    try:
        root = loader.get_single_node()
        return YamlFile(None if root is None else loader.construct_document(root), root)
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}", hint=hint) from None
    finally:
        loader.dispose()


def _yaml() -> Any:
    try:
        return importlib.import_module("yaml")
    except ImportError:
        raise MissingExtra("Reading a YAML file needs PyYAML.", hint="pip install pyyaml") from None


def _loader(yaml: Any, numbers: bool) -> Any:
    """Return a loader that reads numbers as in YAML 1.2: 5e-4 is a number, 1:30 is a string, and `no` is not a boolean.

    A key that is given twice is an error.
    """

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            for key, _ in node.value:
                if key.tag in _NOT_TEXT:
                    key.tag = "tag:yaml.org,2002:str"  # a key such as `true` or `null` is a name like any other
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            if twice := next((key for key in keys if keys.count(key) > 1), None):
                raise yaml.MarkedYAMLError(problem=f"{twice!r} is given twice", problem_mark=node.start_mark)
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        letter: [(tag, rule) for tag, rule in rules if tag.rpartition(":")[2] not in _PLAIN_RULES]
        for letter, rules in Loader.yaml_implicit_resolvers.items()
    }
    for kind, (rule, letters) in _RULES.items():
        if numbers or kind == "bool":
            Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(rule), list(letters))
    return Loader
