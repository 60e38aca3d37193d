"""Parameters of a run: the arguments of its script and the values given to `shoal.init(config=…)`, under one name each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_PARAMS = 500
MAX_TEXT = 500
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
Param = float | int | str | bool | None


def params_of(entry: Sequence[str], config: Mapping[str, Any] | None = None) -> dict[str, Param]:
    """Return name → value, sorted by name. Values of the config replace arguments with the same name.

    Nested values are named by their path (`model.depth`); lists are written as JSON.
    """
    found: dict[str, Param] = {name.lstrip("-"): value(text) for name, text in arguments(entry[1:]).items()}
    found |= _flat(config or {})
    return {name: found[name] for name in sorted(n for n in found if n)[:MAX_PARAMS]}


def arguments(words: Sequence[str]) -> dict[str, str]:
    """Return option → value: `--lr 3 --flag x` gives {"--lr": "3", "--flag": "x"}. Positional words are "#1", "#2", …"""
    found: dict[str, str] = {}
    option = None
    for word in words:
        is_number = re.fullmatch(r"-\d[\d.eE+-]*", word)
        if word.startswith("-") and not is_number:
            name, equals, text = word.partition("=")
            found[name] = text if equals else ""
            option = None if equals else name
        elif option is not None:
            found[option] = f"{found[option]} {word}".strip()
        else:
            found[f"#{sum(k.startswith('#') for k in found) + 1}"] = word
    return found


def value(text: str) -> Param:
    """Return the value of an argument: a number if it is written as one, True for an option without a value, else the text."""
    if not text:
        return True
    if not _NUMBER.fullmatch(text):
        return text[:MAX_TEXT]
    number = float(text)
    is_whole = re.fullmatch(r"[+-]?\d{1,15}", text) is not None
    return int(text) if is_whole else number if abs(number) != float("inf") else text[:MAX_TEXT]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Param]:
    found: dict[str, Param] = {}
    for key, item in list(values.items())[:MAX_PARAMS]:
        name = f"{prefix}{key}"
        if isinstance(item, Mapping) and item and name.count(".") < 10:
            found |= _flat(item, f"{name}.")
        elif isinstance(item, str):
            found[name] = item[:MAX_TEXT]
        elif (
            item is None
            or isinstance(item, bool)
            or (isinstance(item, int) and abs(item) < 2**53)
            or (isinstance(item, float) and abs(item) != float("inf") and item == item)
        ):
            found[name] = item
        else:
            found[name] = json.dumps(item, ensure_ascii=False, default=str)[:MAX_TEXT]
    return found
