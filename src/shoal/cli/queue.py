"""`shoal queue`: what waits, when it will start, and what each workspace may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from shoal.cli._format import ago, clean, plural
from shoal.cli._output import Column, out
from shoal.cli._parse import DeviceName, parse_nodes, parse_seconds
from shoal.cli._session import connect
from shoal.cli.training_why import starts
from shoal.core.errors import NotFound, UsageError
from shoal.core.names import did_you_mean

if TYPE_CHECKING:
    from shoal.core.queue import QueueRow, QueueView, QuotaView, WishView

app = App(name="queue")


@app.command
def show(*, limit: int = 50, starts: bool = False) -> None:
    """Show the jobs that wait, in the order they will be looked at.

    Of other people's workspaces you see that something waits, not what. The
    last lines tell what your own workspaces hold and have used of late.

    For example:

      shoal queue show
      shoal queue show --starts
      shoal queue show --limit 500 --json

    Parameters
    ----------
    limit
        How many at most (default 50).
    starts
        Tell when each will likely start.
    """
    with connect() as client:
        queue = client.queue.show(limit=limit, starts=starts)
    out.show(queue, lambda: _print(queue, with_starts=starts))


@app.command
def simulate(
    *,
    nodes: Annotated[str | None, Parameter(name=("--nodes", "-n"))] = None,
    accels: Annotated[int | None, Parameter(name=("--accels", "-a"))] = None,
    device: DeviceName = "auto",
    priority: Annotated[int, Parameter(allow_leading_hyphen=True)] = 0,
    time_limit: str | None = None,
    expected: str | None = None,
    exclude: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
    prefer: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
) -> None:
    """Play the queue forward, as it is or with a job you might submit. Nothing is submitted.

    Without a size, it tells when each waiting job will likely start. With one,
    when such a job would start, who would make way and who would wait longer.

    For example:

      shoal queue simulate
      shoal queue simulate --nodes 2 --accels 8 --device cuda
      shoal queue simulate --accels 4 --priority 10 --time-limit 2h

    Parameters
    ----------
    nodes
        Number of nodes, or MIN:MAX for as many as there are.
    accels
        Slots per node.
    device
        Kind of slots: auto, any, cpu, cuda, rocm or xpu (see `training run`).
    priority
        From -100 to 100 (default 0).
    time_limit
        The time limit it would have.
    expected
        How long it is likely to run.
    exclude
        Machine it must not run on (repeatable).
    prefer
        Machine to run on where it has room (repeatable).
    """
    if nodes is None and accels is None and device == "auto":
        with connect() as client:
            queue = client.queue.show(limit=1000, starts=True)
        out.show(queue, lambda: _print(queue, with_starts=True))
        return
    from shoal.core.queue import JobWish

    low, high = parse_nodes(nodes or "1")
    wish = JobWish(
        min_nodes=low,
        max_nodes=high,
        accels=1 if accels is None else accels,
        device=device,
        priority=priority,
        time_limit_s=parse_seconds(time_limit, "--time-limit"),
        expected_s=parse_seconds(expected, "--expected"),
        exclude=exclude or [],
        prefer=prefer or [],
    )
    with connect() as client:
        told = client.queue.simulate(wish)
    out.show(told, lambda: _print_wish(told))


@app.command
def quota(
    workspace: str | None = None,
    /,
    *,
    slots: int | None = None,
    no_limit: bool = False,
    weight: float | None = None,
) -> None:
    """Show what each workspace may use, or set it. For admins.

    A quota is the number of slots a workspace's jobs may hold at once. The
    weight is its share when all want more than there is: one of weight 2 gets
    twice as much as one of weight 1.

    For example:

      shoal queue quota
      shoal queue quota vision --slots 16
      shoal queue quota ada@example.org/default --no-limit --weight 2

    Parameters
    ----------
    workspace
        Its name, its id, or OWNER/NAME where several have the name.
    slots
        Slots its jobs may hold at once.
    no_limit
        Take the quota away.
    weight
        Its weight against other workspaces (default 1).
    """
    from shoal.core.queue import QuotaSet

    if slots is not None and no_limit:
        raise UsageError("--slots and --no-limit are at odds.")
    is_change = slots is not None or no_limit or weight is not None
    if is_change and workspace is None:
        raise UsageError("Say whose.", hint=f"{out.prog} queue quota WORKSPACE --slots 8")
    with connect() as client:
        shown = client.queue.quotas()
        if workspace is not None:
            shown = _named(shown, workspace)
        if is_change and workspace is not None:
            target = shown[0].workspace_id if len(shown) == 1 else workspace
            shown = [client.queue.set_quota(target, QuotaSet(slots=slots, unlimited=no_limit, weight=weight))]
    columns = [
        Column("WORKSPACE", lambda q: q.workspace),
        Column("OWNER", lambda q: q.owner, rank=2),
        Column("QUOTA", lambda q: "-" if q.slots is None else q.slots, is_right=True),
        Column("WEIGHT", lambda q: f"{q.weight:g}", is_right=True, rank=3),
        Column("IN USE", lambda q: q.in_use, is_right=True),
        Column("QUEUED", lambda q: q.queued, is_right=True, rank=1),
        Column("ID", lambda q: q.workspace_id, is_id=True),
    ]
    out.show(shown, lambda: out.table(shown, columns))


def _named(known: list[QuotaView], workspace: str) -> list[QuotaView]:
    found = [q for q in known if workspace in (q.workspace, q.workspace_id, f"{q.owner}/{q.workspace}")]
    if not found:
        near = did_you_mean(workspace, sorted({q.workspace for q in known}))
        raise NotFound(f"There is no workspace '{workspace}' on this server.{near}", hint=f"{out.prog} queue quota")
    return found


def _print(queue: QueueView, *, with_starts: bool) -> None:
    columns = [
        Column("#", lambda r: r.place, is_right=True),
        Column("JOB", lambda r: r.job or "(another's)"),
        Column("WORKSPACE", lambda r: r.workspace, rank=3),
        Column("PRIORITY", lambda r: r.priority, is_right=True, rank=4),
        Column("NODES × SLOTS", _size, is_right=True, rank=2),
        Column("SUBMITTED", lambda r: r.since, rank=3),
    ]
    if with_starts:
        columns.append(Column("LIKELY START", lambda r: ago(r.starts_at) if r.starts_at else "nobody can say", rank=1))
    columns.append(Column("WAITS FOR", lambda r: clean(r.waits), is_text=True))
    out.table(queue.rows, columns, empty="Nothing waits.")
    if queue.queued > len(queue.rows):
        out.dim(f"… and {queue.queued - len(queue.rows)} more: {out.prog} queue show --limit {queue.queued}")
    out.dim(f"{queue.slots_free} of {plural(queue.slots_total, 'slot')} free, {plural(queue.running, 'job')} running.")
    for share in queue.shares:
        limit = f" of at most {share.slots}" if share.slots is not None else ""
        used = f"{share.used_slot_hours:g} slot-hours used of late"
        out.dim(f"{share.workspace}: holds {plural(share.in_use, 'slot')}{limit}, weight {share.weight:g}, {used}")


def _size(row: QueueRow) -> str:
    nodes = str(row.min_nodes) if row.min_nodes == row.max_nodes else f"{row.min_nodes}:{row.max_nodes}"
    return f"{nodes} × {row.accels}"


def _print_wish(told: WishView) -> None:
    out.line(f"{clean(told.text)[:1].upper()}{clean(told.text)[1:]}.")
    if not told.starts_now:
        unsure = "" if told.sure else " (a guess: not all lengths are known)"
        out.line(f"Likely start: {starts(told.starts_at) if told.starts_at else 'nobody can say'}{unsure}")
    if told.preempts:
        out.line(f"Would save and make way: {', '.join(clean(name) for name in told.preempts)}")
    if told.delays:
        out.line(f"{plural(told.delays, 'job')} would start later.")
