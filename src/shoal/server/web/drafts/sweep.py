"""Draft of a sweep: the draft of a job, the values of its parameters as typed, and how to search them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from shoal.core.errors import InvalidSpec, ShoalError
from shoal.core.jobs import JobView
from shoal.core.schema import View
from shoal.core.sweeps import MAX_TRIALS, Axis, Between, Direction, Search, SweepSpec, SweepView
from shoal.server.web.drafts import job as drafts
from shoal.server.web.drafts.job import Draft, to_spec
from shoal.server.web.format import number, plural
from shoal.server.web.forms import Form, parse
from shoal.tune.space import grid_size, param_text, read_param

SEARCHES: tuple[str, ...] = get_args(Search)
_NUMBERS = {"trials": MAX_TRIALS, "parallel": 10_000, "seed": 10**9, "first_rung": 10**6, "factor": 64}
"""Field → its largest allowed value."""
_LEAST = {"seed": 0, "factor": 2}


class ParamRow(View):
    name: str = ""
    values: str = ""


class SweepDraft(Draft):
    """Content of the new-sweep form."""

    like: str = ""
    """Id of the job that the draft was made from."""
    params: list[ParamRow] = []
    search: str = "grid"
    metric: str = "eval/loss"
    direction: str = "min"
    trials: str = ""
    parallel: str = "1"
    seed: str = "0"
    first_rung: str = "1"
    factor: str = "3"

    def grid(self) -> bool:
        return self.search == "grid"


class FieldNote(View):
    """Text beside a field: how it is understood, or what is wrong with it."""

    field: str
    """Name of the field; `param.0` is the first parameter."""
    text: str
    ok: bool


def from_form(form: Form) -> SweepDraft:
    texts: dict[str, Any] = {name: form[name].strip() for name in ("metric", "like", *_NUMBERS) if name in form}
    rows = zip(form.all("param_name"), form.all("param_values"), strict=False)
    return SweepDraft(
        **dict(drafts.from_form(form)),
        **texts,
        params=[ParamRow(name=name.strip(), values=values.strip()) for name, values in rows],
        search=form.get("search", "") if form.get("search") in SEARCHES else "grid",
        direction=form.get("direction", "") if form.get("direction") in get_args(Direction) else "min",
    )


def from_job(job: JobView) -> SweepDraft:
    return SweepDraft(**dict(drafts.from_job(job)), params=[ParamRow()])


def from_sweep(sweep: SweepView, job: Draft) -> SweepDraft:
    """Return a draft with everything of an earlier sweep except its name; `job` is the draft of its trials' job."""
    spec = sweep.spec
    texts: dict[str, Any] = {name: str(value) for name in _NUMBERS if (value := getattr(spec, name)) is not None}
    pairs = (param_text(name, axis).partition("=") for name, axis in spec.space.items())
    return SweepDraft(
        **dict(job) | {"budget": spec.budget or ""},
        **texts,
        params=[ParamRow(name=name, values=values) for name, _, values in pairs],
        search=spec.search,
        metric=spec.metric,
        direction=spec.direction,
    )


def to_sweep(draft: SweepDraft, *, unfinished: bool = False) -> SweepSpec:
    """Return the SweepSpec of a draft; raise InvalidSpec for the first error. See `drafts.to_spec`."""
    job = to_spec(draft, unfinished=unfinished)
    for told in field_notes(draft):
        if not told.ok:
            raise InvalidSpec(told.text)
    space = space_of(draft)
    if not space:
        raise InvalidSpec("Name a parameter and its values, such as lr and 1e-4,3e-4.")
    values = {name: value for name in _NUMBERS if (value := getattr(draft, name))}
    budget, job.budget = job.budget, None
    return parse(
        SweepSpec,
        name=job.name,
        job=job,
        budget=budget,
        space=space,
        search=draft.search,
        metric=draft.metric,
        direction=draft.direction,
        **values,
    )


def space_of(draft: SweepDraft) -> dict[str, Axis]:
    """Return the search space from the rows that are valid."""
    return {name: axis for _, name, axis in _readable(draft)}


def field_notes(draft: SweepDraft) -> list[FieldNote]:
    """Return how each field is understood, or what is wrong with it. Empty rows are omitted."""
    found = [_row(draft, at, row) for at, row in enumerate(draft.params) if row.name or row.values]
    for name, most in _NUMBERS.items():
        text, least = getattr(draft, name), _LEAST.get(name, 1)
        if text and not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            found.append(FieldNote(field=name, text=f"{text!r} is not a number from {least} to {most:,}.", ok=False))
    if not draft.grid() and not draft.trials:
        text = f"Search by {draft.search} needs a number of trials."
        found.append(FieldNote(field="trials", text=text, ok=False))
    if not draft.metric:
        found.append(FieldNote(field="metric", text="Enter the metric by which trials are compared.", ok=False))
    return found


def count(draft: SweepDraft) -> int | None:
    """Return the number of trials of a draft; None while it is unknown."""
    asked = int(draft.trials) if draft.trials.isascii() and draft.trials.isdigit() else None
    if not draft.grid():
        return asked
    space = space_of(draft)
    if not space or any(isinstance(axis, Between) for axis in space.values()):
        return None
    whole = grid_size(space)
    return whole if asked is None else min(asked, whole)


def _readable(draft: SweepDraft) -> Iterator[tuple[int, str, Axis]]:
    for at, row in enumerate(draft.params):
        try:
            yield at, *read_param(f"{row.name}={row.values}")
        except ShoalError:
            continue


def _row(draft: SweepDraft, at: int, row: ParamRow) -> FieldNote:
    field = f"param.{at}"
    if not row.values or not row.name:
        text = "Give its values, such as 1e-4,3e-4." if row.name else "Give it a name, such as lr."
        return FieldNote(field=field, text=text, ok=False)
    try:
        name, axis = read_param(f"{row.name}={row.values}")
    except ShoalError as error:
        return FieldNote(field=field, text=f"{error.message.rstrip('.')}.", ok=False)
    if any(other == name for before, other, _ in _readable(draft) if before < at):
        return FieldNote(field=field, text=f"{name} is given twice.", ok=False)
    if draft.grid() and isinstance(axis, Between):
        text = f"A grid needs single values: list them, or choose another search. This is {_reading(axis)}."
        return FieldNote(field=field, text=text, ok=False)
    return FieldNote(field=field, text=_reading(axis), ok=True)


def _reading(axis: Axis) -> str:
    if isinstance(axis, Between):
        ends = (int(axis.low), int(axis.high)) if axis.whole else (axis.low, axis.high)
        kind = "whole numbers" if axis.whole else "numbers"
        return f"{kind} from {number(ends[0])} to {number(ends[1])}{', on a log scale' if axis.log else ''}"
    words = sum(isinstance(value, str) for value in axis.values)
    kinds = {0: "value", len(axis.values): "word"}
    return plural(len(axis.values), kinds.get(words, "value"))
