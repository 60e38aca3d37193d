"""`shoal engine`: clusters with their own queue, of any installed kind.

The options of `shoal engine add` are those of the kinds that are installed here; `--set` gives those of a kind that only the
server has.
"""

from __future__ import annotations

import inspect
import shlex
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from shoal.cli.shared.format import clean, plural
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.session import connect
from shoal.core.errors import UsageError
from shoal.engines.kinds import AddedKind, added_kinds

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from shoal.core.engines import EngineView

app = App(name="engine")
_ADD = """Add a cluster: jobs can also run on its nodes, through its own queue.

The cluster is tested first and added only if it works. Its nodes appear
in `shoal machine list`. Admins only.

For example:

{examples}

Parameters
----------
kind
    Kind of cluster: {kinds}.
name
    Name of the engine (default: its kind). Its machines are named NAME:NODE.
set_options
    KEY=VALUE: an option of a kind that is installed only on the server; may be repeated.
{options}
"""


def add(kind: str, /, *, name: str = "", set_options: list[str] | None = None, **given: Any) -> None:
    from shoal.core.engines import EngineAdd

    options: dict[str, Any] = dict(map(_pair, set_options or ()))
    known = added_kinds().get(kind)
    fields = {flag: field for field, flag, _ in _flags(known)} if known is not None else {}
    for flag, value in given.items():
        if value is None:
            continue
        if flag not in fields:
            raise UsageError(
                f"--{flag.replace('_', '-')} is not an option of a cluster of kind '{kind}'.", hint="--set KEY=VALUE"
            )
        options[fields[flag]] = value
    for field, value in options.items():
        if known is not None and isinstance(value, str) and _is_list(known.options.model_fields.get(field)):
            options[field] = shlex.split(value)
    if known is not None:
        known.options.model_validate(options)
    with connect() as client:
        engine = client.engines.add(EngineAdd(name=name, kind=kind, options=options))
    out.show(engine, lambda: out.info(f"Engine '{engine.name}' added: {_offers(engine)}. See {out.prog} machine list"))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"--set {text!r} is not KEY=VALUE.", hint="--set partition=gpu")
    return key, value


def _flags(kind: AddedKind) -> Iterator[tuple[str, str, FieldInfo]]:
    """Yield (field, parameter, description) of each option of a kind."""
    for field, info in kind.options.model_fields.items():
        yield field, kind.flags.get(field, field), info


def _is_list(info: FieldInfo | None) -> bool:
    return info is not None and typing.get_origin(info.annotation) is list


def _annotation(info: FieldInfo) -> Any:
    """Return the type of an option on the command line: a number, a switch, a choice or a text; a list is one text."""
    if _is_list(info):
        return Annotated[str | None, Parameter(allow_leading_hyphen=True)]
    if info.annotation in (int, float, bool) or typing.get_origin(info.annotation) is Literal:
        return typing.Optional[info.annotation]  # noqa: UP045
    return str | None


def _complete_add() -> None:
    """Give `add` the options and the help of the installed kinds. If two kinds have an option of one name, the first counts."""
    flags: dict[str, FieldInfo] = {}
    for kind in added_kinds().values():
        for _, flag, info in _flags(kind):
            flags.setdefault(flag, info)
    own = inspect.signature(add).parameters
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        own["kind"],
        own["name"],
        *(inspect.Parameter(f, keyword, default=None, annotation=_annotation(info)) for f, info in flags.items()),
        own["set_options"].replace(
            annotation=Annotated[list[str] | None, Parameter(name="--set", negative=(), consume_multiple=False)]
        ),
    ]
    typed = [p.replace(annotation=str) if isinstance(p.annotation, str) else p for p in parameters]
    add.__signature__ = inspect.Signature(typed)  # type: ignore[attr-defined]
    add.__annotations__ = {p.name: p.annotation for p in typed}
    examples = "\n".join(kind.examples for kind in added_kinds().values() if kind.examples)
    add.__doc__ = _ADD.format(
        kinds=" or ".join(added_kinds()),
        examples="\n".join(f"  {line}" for line in examples.splitlines()),
        options="\n".join(f"{flag}\n    {info.description or flag}" for flag, info in flags.items()),
    )


_complete_add()
app.command(add)


@app.command(name="list")
def list_engines() -> None:
    """List the added engines. Admins only.

    For example:

      shoal engine list
      shoal engine list --json
    """
    with connect() as client:
        engines = client.engines.list()
    columns = [
        Column("NAME", lambda e: e.name),
        Column("KIND", lambda e: e.kind, rank=3),
        Column("MACHINES", lambda e: e.machines, is_right=True, rank=2),
        Column("SLOTS", lambda e: e.slots, is_right=True, rank=1),
        *_option_columns(engines),
        Column("ADDED", lambda e: e.created_at, rank=5),
        Column("PROBLEMS", lambda e: "; ".join(e.problems), is_text=True, rank=1),
    ]
    out.show(
        engines,
        lambda: out.table(
            engines, columns, empty=f"None yet. Add one: {out.prog} engine add {next(iter(added_kinds()), 'KIND')}"
        ),
    )


@app.command
def check(name: str, /) -> int:
    """Test an engine now; exit 1 if there are problems. Admins only.

    For example:

      shoal engine check hpc

    Parameters
    ----------
    name
        The engine's name.
    """
    with connect() as client:
        engine = client.engines.check(name)

    def show() -> None:
        for problem in engine.problems:
            out.line(clean(problem))
        if not engine.problems:
            out.info(f"Engine '{engine.name}' works: {_offers(engine)}.")

    out.show(engine, show)
    return 1 if engine.problems else 0


@app.command
def remove(name: str, /) -> None:
    """Remove an engine. Refused while jobs run or wait on it; nothing is deleted on the cluster. Admins only.

    For example:

      shoal engine remove hpc

    Parameters
    ----------
    name
        The engine's name.
    """
    with connect() as client:
        client.engines.remove(name)
    out.show({"removed": name}, lambda: out.info(f"Engine '{name}' removed."))


def _offers(engine: EngineView) -> str:
    return f"{plural(engine.machines, 'machine')} with {plural(engine.slots, 'slot')}"


def _option_columns(engines: Sequence[EngineView]) -> list[Column]:
    """Return the columns for the options that the kinds of these engines want to show."""
    kinds = added_kinds()
    fields = dict.fromkeys(f for e in engines if e.kind in kinds for f in kinds[e.kind].columns)
    return [Column(field.upper(), _option(field), rank=2 * number) for number, field in enumerate(fields, 1)]


def _option(field: str) -> Callable[[EngineView], Any]:
    return lambda engine: engine.options.get(field)
