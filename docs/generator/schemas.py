"""docs/reference/schemas.md: the JSON objects of the API, field by field."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from generator._markdown import anchor, field_docs, prose, table

_PLAIN = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "Any": "any", "datetime": "time"}


def page() -> str:
    from generator.api import schemas_in_use
    from shoal.engines.kinds import added_kinds

    options = [kind.options for kind in added_kinds().values()]
    found = sorted(set(_closure(chain(schemas_in_use(), options))), key=lambda c: c.__name__)
    parts = [
        """# Schemas

The JSON objects of the [API](api.md). Times are UTC, as `2025-01-31T12:00:00.000Z`. Requests with a field that is not listed
here are refused; answers may gain fields, so ignore the ones you do not know.
"""
    ]
    parts += [_schema(c) if issubclass(c, BaseModel) else _enum(c) for c in found]
    return "\n".join(parts)


def name_of(kind: Any, page: str = "") -> str:
    """Return a type as Markdown with links to schemas on `page` ('' for the same page)."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return name_of(args[0], page)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if a is type(None) else name_of(a, page) for a in args)
    if origin is typing.Literal:
        return " or ".join(f"`{a}`" for a in args)
    if origin in (list, tuple, set, frozenset):
        return f"list of {name_of(args[0], page)}"
    if origin is dict:
        inner = name_of(args[1], page)
        return "object" if inner == "any" else f"object of {inner}"
    name = getattr(kind, "__name__", str(kind))
    if isinstance(kind, type) and issubclass(kind, BaseModel | Enum):
        return f"[{name}]({page}#{anchor(name)})"
    return _PLAIN.get(name, name)


def _schema(cls: type[BaseModel]) -> str:
    docs = field_docs(cls)
    rows = [
        (f"`{name}`", name_of(field.annotation), _default(field), prose(docs.get(name, "")))
        for name, field in cls.model_fields.items()
    ]
    own = cls.__dict__.get("__doc__")
    text = f"{prose(own)}\n\n" if own else ""
    head = ["Field", "Type", "Default", "Meaning"]
    width = 4 if any(row[3] for row in rows) else 3
    return f"## {cls.__name__}\n\n{text}{table(head[:width], [row[:width] for row in rows])}"


def _enum(cls: type[Enum]) -> str:
    docs = field_docs(cls)
    own = cls.__dict__.get("__doc__") or ""
    values = "\n".join(f"- `{m.value}`" + (f": {prose(docs[m.name])}" if m.name in docs else "") for m in cls)
    return f"## {cls.__name__}\n\n{prose(own) + chr(10) * 2 if own else ''}{values}\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        value = field.default_factory()  # type: ignore[call-arg]
        return f"`{[getattr(v, 'value', v) for v in value]}`" if isinstance(value, list) else "computed"
    value = None if field.default is PydanticUndefined else field.default
    return (
        "`null`"
        if value is None
        else f"`{str(value).lower() if isinstance(value, bool) else repr(value)}`".replace("'", '"')
    )


def _closure(kinds: Iterator[Any]) -> Iterator[type[BaseModel] | type[Enum]]:
    """Yield the schemas among these types, and all schemas that their fields refer to."""
    seen: set[Any] = set()
    ahead = list(kinds)
    while ahead:
        kind = ahead.pop()
        ahead += typing.get_args(kind)
        if not isinstance(kind, type) or kind in seen or typing.get_origin(kind) is not None:
            continue
        seen.add(kind)
        if issubclass(kind, BaseModel):
            kind.model_rebuild()  # it may name a class that stands below it
            ahead += [f.annotation for f in kind.model_fields.values()]
            yield kind
        elif issubclass(kind, Enum):
            yield kind
