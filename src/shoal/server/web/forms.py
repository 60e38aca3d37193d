"""Reading of forms, and replies to them: a redirect for plain browsers, a header for htmx."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import RedirectResponse, Response

from shoal.core.errors import InvalidSpec
from shoal.server.web.render import is_htmx

Model = TypeVar("Model", bound=BaseModel)
_MAX_FIELDS = 1000


class Form(dict[str, str]):
    """Fields of a form: the last value of each; `all` returns every value of a field."""

    def __init__(self, fields: dict[str, list[str]]):
        super().__init__({name: values[-1] for name, values in fields.items()})
        self._fields = fields

    def all(self, name: str) -> list[str]:
        return self._fields.get(name, [])


async def _read(request: Request) -> Form:
    try:
        text = (await request.body()).decode()
        return Form(parse_qs(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"))
    except ValueError:
        raise InvalidSpec("The form could not be read.") from None


Fields = Annotated[Form, Depends(_read)]


def parse(model: type[Model], **values: Any) -> Model:
    """Return a schema from the fields of a form. The error names the first problem, without the value: it may be secret."""
    try:
        return model(**values)
    except ValidationError as error:
        raise _refusal(error) from None


def parse_json(model: type[Model], text: str) -> Model:
    """Return a schema from one field that holds all of it as JSON; errors as in `parse`."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise _refusal(error) from None


def days_of(text: str) -> int:
    """Return the number of days in a field; 0 if it holds no number. Only the first nine digits are used."""
    return int(text[:9]) if text.isdecimal() else 0


def go(request: Request, path: str) -> Response:
    """Return a redirect to another page."""
    if is_htmx(request):
        return Response(status_code=204, headers={"HX-Redirect": path})
    return RedirectResponse(path, 303)


def done(request: Request, text: str, path: str) -> Response:
    """Show a message on the current page and reload its parts that wait for `shoal:changed`. Without htmx, go to `path`."""
    if is_htmx(request):
        triggers = json.dumps({"shoal:toast": {"text": text}, "shoal:changed": {}}, ensure_ascii=True)
        return Response(status_code=204, headers={"HX-Trigger": triggers})
    return RedirectResponse(path, 303)


def local_path(path: str | None) -> str:
    """Return the path if it is one of this server, else "/": a redirect must not lead to another site."""
    is_ours = path and path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_ours and path else "/"


def _refusal(error: ValidationError) -> InvalidSpec:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"]).replace("_", " ")
    text = str(first["msg"]).removeprefix("Value error, ")
    return InvalidSpec(f"{field}: {text}.".replace("..", ".") if field else f"{text}.")
