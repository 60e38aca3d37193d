"""Columns of the table of runs, as SQL expressions, and the conditions of a query on them.

A name that is none of the built-in columns is a metric if it has a suffix (`loss.min`), else a parameter, or the last value of a
metric for runs without such a parameter. `param.NAME` and `metric.NAME` say which one is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, cast, exists, false, func, literal, not_, or_, select
from sqlalchemy.orm import aliased

from shoal.core.durations import parse_duration
from shoal.core.errors import InvalidSpec, UsageError
from shoal.core.run_filter import Term
from shoal.core.schema import utcnow
from shoal.server.models.jobs import Job
from shoal.server.models.ledger import LedgerEntry
from shoal.server.models.runs import RunMetric
from shoal.server.runs.at_step import is_at_step

Expr = ColumnElement[Any]
SUFFIXES = {"last": "last", "min": "min", "max": "max", "step": "last_step", "count": "count"}
MAX_METRICS = 60
"""Metrics of one query. Each is a join, and SQLite joins at most 64 tables."""
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")


@dataclass(slots=True)
class Columns:
    """Expressions of the columns of one query; collects the metrics that must be joined."""

    joins: dict[str, Any] = field(default_factory=dict)
    """Metric → alias of run_metrics."""

    def of(self, name: str) -> Expr:
        """Return the expression of a column."""
        if name in _BUILT_IN:
            return _BUILT_IN[name]()
        if name.startswith("param."):
            return _param(name.removeprefix("param."))
        if name.startswith("metric."):
            return self._metric(name.removeprefix("metric."))
        if name.rpartition(".")[2] in SUFFIXES and "." in name:
            return self._metric(name)  # a metric at once: reading the parameters of every run costs time
        found: Expr = func.coalesce(_param(name), self._metric(name))
        return found

    def joined(self, query: Any) -> Any:
        """Return the query with the metrics that its columns need."""
        for name, alias in self.joins.items():
            query = query.outerjoin(alias, and_(alias.job_id == Job.id, alias.name == name))
        return query

    def where(self, term: Term) -> Expr:
        """Return the condition of a term."""
        found = func.coalesce(self._condition(term), false())
        return not_(found) if term.is_negated != (term.op == "!=") else found

    def _metric(self, name: str) -> Expr:
        stem, dot, suffix = name.rpartition(".")
        if not dot or suffix not in SUFFIXES:
            stem, suffix = name, "last"
        if stem not in self.joins:
            if len(self.joins) == MAX_METRICS:
                raise InvalidSpec(
                    f"A query can use at most {MAX_METRICS} metrics.", hint="Ask for fewer columns at once."
                )
            self.joins[stem] = aliased(RunMetric)
        found: Expr = getattr(self.joins[stem], SUFFIXES[suffix])
        return found

    def _condition(self, term: Term) -> Expr:
        if not term.column:
            word = term.values[0]
            return or_(_contains(Job.name, word), _contains(Job.title, word), Job.id == word)
        special = _SPECIAL.get(term.column)
        if special is not None and term.op in (":", "=", "!="):
            return or_(*(special(value) for value in term.values))
        if term.column in ("age", "created"):
            return _age(term)
        if is_at_step(term.column):
            raise InvalidSpec(f"A query cannot filter by '{term.column}'.", hint="Show it as a column, or sort by it.")
        column = self.of(term.column)
        if term.op in ("<", "<=", ">", ">="):
            return _compared(column, term)
        if term.op == "~":
            return or_(*(_contains(cast(column, Text), v) for v in term.values))
        return or_(*(_equal(column, value) for value in term.values))


def json_path(name: str) -> str:
    if '"' in name or "\0" in name or name.endswith("\\"):
        raise InvalidSpec(f"A column name cannot contain a double quote or NUL, or end with a backslash: {name!r}")
    return f'$."{name}"'


def _param(name: str) -> Expr:
    found: Expr = func.json_extract(Job.params, json_path(name))
    return found


def _compared(column: Expr, term: Term) -> Expr:
    if len(term.values) > 1:
        raise InvalidSpec(f"'{term.column}{term.op}' takes one value.")
    value = literal(_number(term))
    compare = {"<": column < value, "<=": column <= value, ">": column > value, ">=": column >= value}[term.op]
    # Text would be larger than every number.
    return and_(func.typeof(column).in_(("integer", "real")), compare)


def _number(term: Term) -> float:
    text = term.values[0]
    try:
        return parse_duration(text, term.column) if term.column == "duration" else float(text)
    except (ValueError, UsageError):
        raise InvalidSpec(
            f"'{term.column}{term.op}{text}' needs a number.", hint=f"{term.column}{term.op}0.5"
        ) from None


def _equal(column: Expr, value: str) -> Expr:
    choices = [cast(column, Text) == value]
    try:
        choices.append(and_(func.typeof(column).in_(("integer", "real")), column == float(value)))
    except ValueError:
        if value.lower() in ("true", "false"):  # SQLite reads JSON's true as 1
            choices.append(column == int(value.lower() == "true"))
    return or_(*choices)


def _age(term: Term) -> Expr:
    if term.op not in ("<", "<=", ">", ">=") or len(term.values) > 1:
        raise InvalidSpec(f"'{term.column}' needs a length of time.", hint="age<2d")
    try:
        moment = utcnow() - timedelta(seconds=parse_duration(term.values[0], term.column))
    except (UsageError, OverflowError):
        raise InvalidSpec(f"'{term.values[0]}' is not a length of time.", hint="age<2d") from None
    is_newer: Expr = Job.created_at > moment
    return is_newer if term.op.startswith("<") else Job.created_at <= moment


def _contains(column: Any, text: str) -> Expr:
    found: Expr = func.lower(column).contains(text.lower(), autoescape=True)
    return found


def _user(value: str) -> Expr:
    return or_(Job.created_by == value, Job.created_by.startswith(f"{value}@", autoescape=True))


def _tag(value: str) -> Expr:
    each = func.json_each(Job.tags).table_valued("value")
    return exists(select(literal(1)).select_from(each).where(each.c.value == value))


def _flag(column: Any) -> Callable[[str], Expr]:
    def condition(value: str) -> Expr:
        if value.lower() == "any":
            return literal(True)
        if value.lower() not in (*_YES, *_NO):
            raise InvalidSpec(f"'{value}' must be yes, no or any.")
        found: Expr = column if value.lower() in _YES else not_(column)
        return found

    return condition


def _kind(value: str) -> Expr:
    return Job.kind != "lease" if value == "any" else Job.kind == value


_SPECIAL: dict[str, Callable[[str], Expr]] = {
    "user": _user,
    "tag": _tag,
    "name": lambda value: _contains(Job.name, value),
    "kind": _kind,
    "star": _flag(Job.starred.is_(True)),
    "archived": _flag(Job.archived_at.is_not(None)),
}


def _duration() -> Expr:
    end = func.coalesce(func.julianday(Job.ended_at), func.julianday("now"))
    found: Expr = (end - func.julianday(Job.started_at)) * 86_400.0
    return found


def _ledger(what: Any, unit: float) -> Expr:
    found = select(func.sum(what) / unit).where(LedgerEntry.job_id == Job.id)
    return found.correlate(Job).scalar_subquery()


def _spec(path: str) -> Callable[[], Expr]:
    found: Expr = func.json_extract(Job.spec, path)
    return lambda: found


_BUILT_IN: dict[str, Callable[[], Expr]] = {
    "id": lambda: Job.id.expression,
    "name": lambda: Job.name.expression,
    "title": lambda: Job.title.expression,
    "note": lambda: Job.note.expression,
    "description": lambda: Job.description.expression,
    "kind": lambda: Job.kind.expression,
    "status": lambda: Job.state.expression,
    "user": lambda: Job.created_by.expression,
    "star": lambda: Job.starred.expression,
    "tag": lambda: Job.tags.expression,
    "created": lambda: Job.created_at.expression,
    "attempts": lambda: Job.attempts.expression,
    "priority": lambda: Job.priority.expression,
    "exit_code": lambda: Job.exit_code.expression,
    "reason": lambda: Job.reason.expression,
    "duration": _duration,
    "slot_hours": lambda: _ledger(LedgerEntry.slot_ms, 3_600_000.0),
    "cost": lambda: _ledger(LedgerEntry.cost, 1_000_000.0),
    "device": _spec("$.device"),
    "nodes": _spec("$.max_nodes"),
    "accels": _spec("$.accels"),
    "sweep": _spec("$.env.SHOAL_SWEEP"),
}
BUILT_IN = frozenset(_BUILT_IN)
