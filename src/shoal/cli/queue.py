"""`shoal queue`: waiting jobs, their likely starts, and the quotas of workspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from shoal.cli.shared.format import ago, clean, plural
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import DeviceName, device_requirements, parse_nodes, parse_seconds
from shoal.cli.shared.session import connect
from shoal.cli.training.why import starts
from shoal.core.errors import NotFound, UsageError
from shoal.core.gpu_models import parse_gpu
from shoal.core.names import did_you_mean

if TYPE_CHECKING:
    from shoal.core.queue import QueueRow, QueueView, QuotaView, StartEstimateView

app = App(name="queue")


@app.command
def show(*, limit: int = 50, starts: bool = False) -> None:
    """Show the waiting jobs in the order in which they are considered.

    Jobs of workspaces that you are not a member of are listed without their
    names. The last lines show the slots that your own workspaces use now and
    the slot-hours they used recently.

    For example:

      shoal queue show
      shoal queue show --starts
      shoal queue show --limit 500 --json

    Parameters
    ----------
    limit
        Maximum number of jobs to show (default 50).
    starts
        Also show when each job will likely start.
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
    gpu: str | None = None,
    gpu_memory: str | None = None,
    label: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
    priority: Annotated[int, Parameter(allow_leading_hyphen=True)] = 0,
    time_limit: str | None = None,
    expected: str | None = None,
    exclude: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
    prefer: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
) -> None:
    """Estimate when jobs will start, as the queue is or with a job you might submit. Nothing is submitted.

    Without a size, it shows when each waiting job will likely start. With a
    size, it shows when such a job would start, which jobs it would preempt,
    and how many would start later because of it.

    For example:

      shoal queue simulate
      shoal queue simulate --nodes 2 --accels 8 --device cuda
      shoal queue simulate --accels 4 --priority 10 --time-limit 2h

    Parameters
    ----------
    nodes
        Number of nodes, or MIN:MAX for as many as are free.
    accels
        Slots per node.
    device
        Kind of slots: auto, any, gpu, cpu, cuda, rocm or xpu (see `training run`).
    gpu
        Model of the GPUs: H100, or H100:8 for 8 per node.
    gpu_memory
        Memory that each GPU must have at least (40G).
    label
        Label that the machines must have, as KEY=VALUE (repeatable).
    priority
        From -100 to 100 (default 0).
    time_limit
        Time limit of the job.
    expected
        Expected duration of the job.
    exclude
        Machine that the job must not run on (repeatable).
    prefer
        Machine to use if it has room (repeatable).
    """
    if nodes is None and accels is None and device == "auto" and not (gpu or gpu_memory or label):
        with connect() as client:
            queue = client.queue.show(limit=1000, starts=True)
        out.show(queue, lambda: _print(queue, with_starts=True))
        return
    from shoal.core.queue import StartEstimateRequest

    low, high = parse_nodes(nodes or "1")
    wish = StartEstimateRequest(
        min_nodes=low,
        max_nodes=high,
        **device_requirements(accels, device, gpu, gpu_memory, label),
        priority=priority,
        time_limit_s=parse_seconds(time_limit, "--time-limit"),
        expected_s=parse_seconds(expected, "--expected"),
        exclude=exclude or [],
        prefer=prefer or [],
    )
    with connect() as client:
        told = client.queue.simulate(wish)
    out.show(told, lambda: _print_estimate(told))


@app.command
def quota(
    workspace: str | None = None,
    /,
    *,
    slots: int | None = None,
    no_limit: bool = False,
    model: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None,
    weight: float | None = None,
) -> None:
    """Show the quotas and weights of workspaces, or set them. Admins only.

    A quota is the number of slots that a workspace's jobs may use at once.
    When there are not enough slots for all, they are shared by weight: a
    workspace of weight 2 gets twice as much as one of weight 1.

    For example:

      shoal queue quota
      shoal queue quota vision --slots 16
      shoal queue quota vision --model H100=8 --model A100=none
      shoal queue quota ada@example.org/default --no-limit --weight 2

    Parameters
    ----------
    workspace
        Name or id of the workspace, or OWNER/NAME if several have the same name.
    slots
        Number of slots its jobs may use at once.
    no_limit
        Remove the quota.
    model
        Number of GPUs of a model its jobs may use at once, as H100=8, or H100=none. May be repeated.
    weight
        Weight of the workspace relative to others (default 1).
    """
    from shoal.core.queue import QuotaSet

    if slots is not None and no_limit:
        raise UsageError("--slots and --no-limit cannot be combined.")
    models = _model_quotas(model or [])
    is_change = slots is not None or no_limit or weight is not None or bool(models)
    if is_change and workspace is None:
        raise UsageError("Name the workspace to change.", hint=f"{out.prog} queue quota WORKSPACE --slots 8")
    with connect() as client:
        shown = client.queue.quotas()
        if workspace is not None:
            shown = _named(shown, workspace)
        if is_change and workspace is not None:
            target = shown[0].workspace_id if len(shown) == 1 else workspace
            change = QuotaSet(slots=slots, unlimited=no_limit, models=models, weight=weight)
            shown = [client.queue.set_quota(target, change)]
    columns = [
        Column("WORKSPACE", lambda q: q.workspace),
        Column("OWNER", lambda q: q.owner, rank=2),
        Column("QUOTA", lambda q: "-" if q.slots is None else q.slots, is_right=True),
        Column("GPUS", lambda q: ", ".join(f"{m}={n}" for m, n in q.models.items()) or "-", rank=2),
        Column("WEIGHT", lambda q: f"{q.weight:g}", is_right=True, rank=3),
        Column("IN USE", lambda q: q.in_use, is_right=True),
        Column("QUEUED", lambda q: q.queued, is_right=True, rank=1),
        Column("ID", lambda q: q.workspace_id, is_id=True),
    ]
    out.show(shown, lambda: out.table(shown, columns))


def _model_quotas(texts: list[str]) -> dict[str, int | None]:
    """Return model → number of GPUs, or None to remove the limit."""
    found: dict[str, int | None] = {}
    for text in texts:
        name, _, count = text.rpartition("=")
        if not name or not (count == "none" or count.isdigit()):
            raise UsageError(f"--model {text!r} is not MODEL=NUMBER.", hint="--model H100=8, or --model H100=none")
        found[parse_gpu(name)[0]] = None if count == "none" else int(count)
    return found


def _named(known: list[QuotaView], workspace: str) -> list[QuotaView]:
    found = [q for q in known if workspace in (q.workspace, q.workspace_id, f"{q.owner}/{q.workspace}")]
    if not found:
        near = did_you_mean(workspace, sorted({q.workspace for q in known}))
        raise NotFound(f"There is no workspace '{workspace}' on this server.{near}", hint=f"{out.prog} queue quota")
    return found


def _print(queue: QueueView, *, with_starts: bool) -> None:
    columns = [
        Column("#", lambda r: r.place, is_right=True),
        Column("JOB", lambda r: r.job or "(not yours)"),
        Column("WORKSPACE", lambda r: r.workspace, rank=3),
        Column("PRIORITY", lambda r: r.priority, is_right=True, rank=4),
        Column("NODES × SLOTS", _size, is_right=True, rank=2),
        Column("SUBMITTED", lambda r: r.since, rank=3),
    ]
    if with_starts:
        columns.append(Column("LIKELY START", lambda r: ago(r.starts_at) if r.starts_at else "unknown", rank=1))
    columns.append(Column("WAITS FOR", lambda r: clean(r.waits), is_text=True))
    out.table(queue.rows, columns, empty="No jobs are waiting.")
    if queue.queued > len(queue.rows):
        out.dim(f"… and {queue.queued - len(queue.rows)} more: {out.prog} queue show --limit {queue.queued}")
    out.dim(f"{queue.slots_free} of {plural(queue.slots_total, 'slot')} free, {plural(queue.running, 'job')} running.")
    for share in queue.shares:
        limit = f" of at most {share.slots}" if share.slots is not None else ""
        used = f"{share.used_slot_hours:g} slot-hours used recently"
        out.dim(f"{share.workspace}: uses {plural(share.in_use, 'slot')}{limit}, weight {share.weight:g}, {used}")


def _size(row: QueueRow) -> str:
    nodes = str(row.min_nodes) if row.min_nodes == row.max_nodes else f"{row.min_nodes}:{row.max_nodes}"
    return f"{nodes} × {row.accels}"


def _print_estimate(told: StartEstimateView) -> None:
    out.line(f"{clean(told.text)[:1].upper()}{clean(told.text)[1:]}.")
    if not told.starts_now:
        unsure = "" if told.sure else " (a guess: not all durations are known)"
        out.line(f"Likely start: {starts(told.starts_at) if told.starts_at else 'unknown'}{unsure}")
    if told.preempts:
        out.line(f"Would be preempted (after saving): {', '.join(clean(name) for name in told.preempts)}")
    if told.delays:
        out.line(f"{plural(told.delays, 'job')} would start later.")
