"""`shoal training diff`: differences between two jobs, and the likely cause of different metrics."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from shoal.cli.shared.format import clean, clean_log, plural
from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect

if TYPE_CHECKING:
    from shoal.core.diffs import JobDiff

_MOST_PACKAGES = 10


def diff(first: str, second: str, /, *, code: bool = False) -> int:
    """Show what differs between two jobs, from which step their metrics differ, and the likely cause.

    Compares code, settings, data, environment, hardware and seed, and then the
    metrics and samples of every step, bit by bit. Values of secrets are not
    shown. Exits 0 if metrics and samples are the same, 1 if not.

    For example:

      shoal training diff baseline candidate
      shoal training diff baseline candidate --code
      shoal training diff baseline candidate --json

    Parameters
    ----------
    first
        Name or id of the first job.
    second
        Name or id of the second job.
    code
        Also show the lines of code that differ.
    """
    with connect() as client:
        found = client.diffs.of(first, second)
    out.show(found, lambda: _print(found, code=code))
    return 1 if found.metric or found.samples else 0


def _print(found: JobDiff, *, code: bool) -> None:
    for line in _parting(found):
        out.line(line)
    for number, cause in enumerate(found.causes):
        lead = "Likely cause" if number == 0 else "Or"
        out.styled((f"{lead}: ", "bold"), clean(cause.what))
        out.line(f"  {clean(cause.why)}")
    for section, changes in groupby(found.changes, key=lambda c: c.section):
        rows = list(changes)
        out.heading(section.capitalize())
        shown = rows[:_MOST_PACKAGES] if section == "environment" else rows
        for row in shown:
            out.line(f"  {clean(row.name)}: {_value(row.first)} → {_value(row.second)}")
        if len(rows) > len(shown):
            out.line(f"  and {plural(len(rows) - len(shown), 'package')} more (see --json)")
    if found.files:
        out.heading("Code")
    for file in found.files:
        mark, style = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}[file.kind]
        out.styled((f"  {mark} {clean(file.path)}", style), f"  ({clean(file.note)})" if file.note else "")
        if code and file.diff:
            _print_diff(file.diff)
    if not found.changes and not found.files:
        out.line("No known differences in code, settings, data, environment, hardware and seed.")
    if any(file.diff for file in found.files) and not code:
        out.dim(f"To see the lines that differ: {out.prog} training diff {found.first} {found.second} --code")
    for note in found.notes:
        out.info(f"  {clean(note)}")


def _parting(found: JobDiff) -> Iterator[str]:
    first, second = clean(found.first), clean(found.second)
    metric, drawn = found.metric, found.samples
    if drawn is not None:
        yield (
            f"Different samples from step {drawn.step} on: {first} used {_samples(drawn.first)}, "
            f"{second} {_samples(drawn.second)} ({clean(drawn.loader)})."
        )
    if metric is not None:
        yield (
            f"{clean(metric.name)} differs from step {metric.step} on: "
            f"{metric.first!r} in {first}, {metric.second!r} in {second}."
        )
    if metric is None and found.last_step is not None:
        yield f"Their metrics are identical, bit by bit, from step {found.first_step} to {found.last_step}."


def _samples(shown: list[int]) -> str:
    return f"{', '.join(map(str, shown))}, …" if shown else "none"


def _value(value: str | None) -> str:
    return "–" if value is None else clean(value) or "given"


def _print_diff(text: str) -> None:
    for line in text.splitlines()[2:]:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "default")
        out.styled((f"    {clean_log(line)}", style))
