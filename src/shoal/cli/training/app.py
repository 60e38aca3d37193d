"""`shoal training`: jobs, from `run` to `delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from shoal.cli.replay.app import replay_job
from shoal.cli.shared.bulk import demand, each
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_duration, parse_since
from shoal.cli.shared.project_file import from_project
from shoal.cli.shared.prompt import confirm
from shoal.cli.shared.session import connect
from shoal.cli.sync.app import import_run
from shoal.cli.training.about import archive, note, notes, star, tag, title
from shoal.cli.training.attach import attach, shell
from shoal.cli.training.checkpoints import checkpoints, fetch, resume
from shoal.cli.training.diff import diff
from shoal.cli.training.drill import drill
from shoal.cli.training.metrics import metrics, samples
from shoal.cli.training.pipeline import pipeline
from shoal.cli.training.query import query, views
from shoal.cli.training.quote import quote
from shoal.cli.training.run import run
from shoal.cli.training.share import share
from shoal.cli.training.stacks import stacks
from shoal.cli.training.why import change, why
from shoal.cli.verify.app import verify_resume

if TYPE_CHECKING:
    from shoal.core.jobs import Progress

app = App(name="training")
app.command(
    run,
    sort_key=0,
    config=from_project,
    usage=f"Usage: {out.prog} training run NAME [OPTIONS] -- SCRIPT [ARGS...]",
)
app.command(quote, config=from_project, usage=f"Usage: {out.prog} training quote [OPTIONS] -- SCRIPT [ARGS...]")
for command in (
    pipeline,
    checkpoints,
    fetch,
    resume,
    metrics,
    samples,
    share,
    verify_resume,
    diff,
    why,
    change,
    stacks,
    query,
    views,
    tag,
    note,
    notes,
    title,
    star,
    archive,
):
    app.command(command)
app.command(samples, name="ledger", show=False)  # its name in 0.1
app.command(shell, usage=f"Usage: {out.prog} training shell [NAME] [OPTIONS] [-- COMMAND...]")
app.command(attach, usage=f"Usage: {out.prog} training attach JOB [OPTIONS] [-- COMMAND...]")
app.command(drill, usage=f"Usage: {out.prog} training drill JOB|[-- SCRIPT [ARGS...]] [OPTIONS]")
app.command(import_run, name="import")
app.command(replay_job, name="replay", usage=f"Usage: {out.prog} training replay JOB [OPTIONS] [-- ARGS...]")

Status = Literal["queued", "starting", "running", "succeeded", "failed", "stopped"]


@app.command(name="list")
def list_jobs(*, status: Status | None = None, search: str | None = None, limit: int = 50) -> None:
    """List the jobs of the workspace, newest first.

    For example:

      shoal training list
      shoal training list --status running
      shoal training list --search gpt --limit 10 --json

    Parameters
    ----------
    status
        Show only jobs in this state.
    search
        Show only jobs with this text in their name.
    limit
        Maximum number of jobs to show (default 50).
    """
    from shoal.cli.training.follow import run_time

    with connect() as client:
        jobs = client.jobs.list(status=status, search=search, limit=limit)
    columns = [
        Column("NAME", lambda j: j.name),
        Column("STATUS", lambda j: j.status, is_status=True),
        Column("PROGRESS", lambda j: _fraction(j.progress), is_right=True, rank=1),
        Column("NODES", lambda j: j.nodes, is_right=True, rank=4),
        Column("ACCELS", lambda j: j.accels, is_right=True, rank=4),
        Column("ATTEMPTS", lambda j: j.attempts, is_right=True, rank=5),
        Column("RAN FOR", run_time, rank=2),
        Column("CREATED", lambda j: j.created_at, rank=3),
        Column("ID", lambda j: j.id, is_id=True),
    ]
    empty = f"No {'matching ' if status or search else ''}jobs yet. Run one: {out.prog} training run NAME -- train.py"
    out.show(jobs, lambda: out.table(jobs, columns, empty=empty))


@app.command
def inspect(name: str, /) -> None:
    """Show the details of a job: state, progress, resources, attempts and events.

    For example:

      shoal training inspect hello
      shoal training inspect hello --json

    Parameters
    ----------
    name
        The job's name or id.
    """
    from shoal.cli.training.inspect_page import print_job

    with connect() as client:
        job = client.jobs.get(name)
    out.show(job, lambda: print_job(job))


@app.command
def logs(
    name: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
    rank: int | None = None,
    node: int | None = None,
    since: str | None = None,
    attempt: int | None = None,
    timestamps: bool = False,
) -> int:
    """Print a job's output. With -f, follow it until the job ends.

    With -f, the exit code is the job's result. Ctrl-C only stops following;
    the job continues.

    For example:

      shoal training logs hello
      shoal training logs hello -f
      shoal training logs hello --rank 0 --since 5m
      shoal training logs hello --node 1 --attempt 2 --timestamps

    Parameters
    ----------
    name
        The job's name or id.
    follow
        Print new lines until the job ends.
    rank
        Show only lines of this worker.
    node
        Show only lines of this node.
    since
        Show only lines after this time: 5m (that long ago) or 2025-01-31T12:00:00Z.
    attempt
        Show only lines of this attempt.
    timestamps
        Print the time before each line.
    """
    from shoal.cli.training.follow import LogOptions, follow_job

    moment = parse_since(since) if since else None
    options = LogOptions(node=node, rank=rank, since=moment, attempt=attempt, timestamps=timestamps)
    with connect() as client:
        job = client.jobs.get(name)
        options.num_workers = job.nodes * job.accels
        if follow:
            return follow_job(client, job, options)
        options.print(client.jobs.lines(job.id, node=node, rank=rank, since=moment, attempt=attempt))
    return 0


@app.command
def stop(*names: str, wait: bool = False) -> int:
    """Stop jobs: SIGTERM first, SIGKILL after a grace period.

    For example:

      shoal training stop hello
      shoal training stop hello world --wait

    Parameters
    ----------
    names
        The jobs' names or ids.
    wait
        Wait until they have stopped.
    """
    demand(names, "job")
    with connect() as client:

        def stop_one(name: str) -> object:
            job = client.jobs.stop(name)
            job = client.jobs.wait(job.id) if wait else job
            if job.status.is_terminal:
                out.info(f"Job '{job.name}' has {'ended: ' if job.status != 'stopped' else ''}{job.status}.")
            else:
                out.info(f"Job '{job.name}' is stopping.")
            return job

        return each(names, stop_one)


@app.command
def delete(*names: str, yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False) -> int:
    """Delete jobs that have ended, with their logs and history.

    For example:

      shoal training delete hello
      shoal training delete hello world --yes

    Parameters
    ----------
    names
        The jobs' names or ids.
    yes
        Do not ask.
    """
    demand(names, "job")
    shown = ", ".join(f"'{name}'" for name in names)
    if not confirm(f"Delete {shown} with logs and history?", yes=yes):
        out.info("Nothing was deleted.")
        return 0
    with connect() as client:

        def delete_one(name: str) -> object:
            client.jobs.delete(name)
            out.info(f"Job '{name}' deleted.")
            return {"deleted": name}

        return each(names, delete_one)


@app.command
def wait(name: str, /, *, timeout: str | None = None) -> int:
    """Wait until a job has ended; exit 0 if it succeeded, 1 if not, 7 on timeout.

    For example:

      shoal training wait hello
      shoal training wait hello --timeout 30m

    Parameters
    ----------
    name
        The job's name or id.
    timeout
        Maximum time to wait: 90s, 30m, 8h …
    """
    from shoal.cli.training.follow import finish

    limit_s = parse_duration(timeout, "--timeout") if timeout else None
    with connect() as client:
        job = client.jobs.wait(name, timeout_s=limit_s)
    if out.json:
        out.emit(job)
    return finish(job)


def _fraction(progress: Progress | None) -> str | None:
    return None if progress is None or progress.fraction is None else f"{progress.fraction:.0%}"
