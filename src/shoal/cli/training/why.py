"""`shoal training why` and `change`: explain why a job waits, and change its requirements."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli.shared.format import clean, duration, timestamp
from shoal.cli.shared.output import out
from shoal.cli.shared.parse import DeviceName, parse_duration, parse_nodes
from shoal.cli.shared.session import connect
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.core.queue import JobChange, WhyView


def why(name: str, /) -> None:
    """Explain why a job waits, when it will likely start, and which change would start it now.

    The suggested change was simulated with the current queue.

    For example:

      shoal training why big
      shoal training why big --json

    Parameters
    ----------
    name
        The job's name or id.
    """
    with connect() as client:
        told = client.queue.why(name)
    out.show(told, lambda: _print(told))


def change(
    name: str,
    /,
    *,
    priority: Annotated[int | None, Parameter(allow_leading_hyphen=True)] = None,
    nodes: Annotated[str | None, Parameter(name=("--nodes", "-n"))] = None,
    accels: Annotated[int | None, Parameter(name=("--accels", "-a"))] = None,
    device: DeviceName | None = None,
    mixed_models: bool | None = None,
    time_limit: str | None = None,
    expected: str | None = None,
    exclude: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
    prefer: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
    any_machine: bool = False,
) -> None:
    """Change the requirements of a waiting job. It keeps its submission time in the queue.

    For example:

      shoal training change big --priority 10
      shoal training change big --nodes 1:4 --accels 2
      shoal training change big --time-limit 2h
      shoal training change big --device any
      shoal training change big --time-limit none --any-machine

    Parameters
    ----------
    name
        The job's name or id.
    priority
        From -100 to 100; higher runs first.
    nodes
        Number of nodes, or MIN:MAX for as many as are free.
    accels
        Slots per node.
    device
        Kind of slots: auto, any, gpu, cpu, cuda, rocm or xpu (see `training run`).
    mixed_models
        Allow nodes with different models of GPUs if there are not enough of one model.
    time_limit
        Maximum run time (90s, 30m, 8h, 2d); 'none' for no limit.
    expected
        Expected duration; 'none' for unknown.
    exclude
        Machine that the job must not run on (repeatable); replaces the earlier list.
    prefer
        Machine to use if it has room (repeatable); replaces the earlier list.
    any_machine
        Clear the list of excluded machines.
    """
    from shoal.core.queue import JobChange

    if any_machine and exclude:
        raise UsageError("--any-machine and --exclude cannot be combined.")
    low, high = parse_nodes(nodes) if nodes else (None, None)
    wanted = JobChange(
        priority=priority,
        min_nodes=low,
        max_nodes=high,
        accels=accels,
        device=device,
        mixed_models=mixed_models,
        time_limit_s=_seconds(time_limit, "--time-limit"),
        expected_s=_seconds(expected, "--expected"),
        exclude=[] if any_machine else exclude,
        prefer=prefer,
    )
    _demand(wanted, name)
    with connect() as client:
        job = client.queue.change(name, wanted)
    out.show(job, lambda: out.info(f"Job '{job.name}' changed. See the effect: {out.prog} training why {job.name}"))


def _demand(wanted: JobChange, name: str) -> None:
    if not wanted.model_dump(exclude_none=True):
        raise UsageError("No change given.", hint=f"{out.prog} training change {name} --priority 10")


def _seconds(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    return 0 if text == "none" else max(1, round(parse_duration(text, option)))


def _print(told: WhyView) -> None:
    out.line(f"{told.job}: {clean(told.text)}")
    for line in told.evidence:
        out.line(f"  {clean(line)}")
    if told.reason == "stalled":
        out.line(f"To see the workers' current stacks: {out.prog} training stacks {told.job}")
    if told.reason in ("not_waiting", "engine", "stalled"):
        return
    if told.starts_at is None:
        out.line("Likely start: unknown")
    else:
        unsure = "" if told.sure else " (a guess: not all durations are known)"
        out.line(f"Likely start: {starts(told.starts_at)}{unsure}")
    if told.suggestion is None:
        out.line("No change of the job would start it now.")
        return
    out.line(f"{clean(told.suggestion.what)[:1].upper()}{clean(told.suggestion.what)[1:]}:")
    out.line(f"  {told.suggestion.command}")


def starts(moment: datetime) -> str:
    """Format the time of a start: `in 12 min (2026-01-31T12:00:00Z)`, or `now`."""
    left_s = (moment - datetime.now(UTC)).total_seconds()
    return f"in {duration(left_s)} ({timestamp(moment)})" if left_s > 1 else "now"
