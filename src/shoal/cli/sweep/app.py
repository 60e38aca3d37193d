"""`shoal sweep`: hyperparameter sweeps, from `run` to `delete`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from shoal.cli.shared.bulk import demand, each
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_duration
from shoal.cli.shared.prompt import confirm
from shoal.cli.shared.session import connect
from shoal.cli.sweep.file import from_file
from shoal.cli.sweep.run import run

app = App(name="sweep")
app.command(
    run,
    sort_key=0,
    config=from_file,
    usage=f"Usage: {out.prog} sweep run NAME --param NAME=VALUES [OPTIONS] -- SCRIPT [ARGS...]",
)


@app.command(name="list")
def list_sweeps(*, limit: int = 50) -> None:
    """List the sweeps of the workspace, newest first.

    For example:

      shoal sweep list
      shoal sweep list --limit 10 --json

    Parameters
    ----------
    limit
        Maximum number of sweeps to show (default 50).
    """
    from shoal.cli.sweep.page import params_text, progress_text, result_text

    with connect() as client:
        sweeps = client.sweeps.list(limit=limit)
    columns = [
        Column("NAME", lambda s: s.name),
        Column("STATUS", lambda s: s.status, is_status=True),
        Column("SEARCH", lambda s: s.search, rank=4),
        Column("TRIALS", progress_text, rank=1),
        Column("BEST", lambda s: result_text(s.best.result) if s.best else None, is_right=True, rank=1),
        Column("WITH", lambda s: params_text(s.best.params) if s.best else None, is_text=True, rank=3),
        Column("CREATED", lambda s: s.created_at, rank=2),
        Column("ID", lambda s: s.id, is_id=True),
    ]
    empty = f"No sweeps yet. Run one: {out.prog} sweep run NAME --param lr=1e-4,3e-4 -- train.py"
    out.show(sweeps, lambda: out.table(sweeps, columns, empty=empty))


@app.command
def inspect(name: str, /) -> None:
    """Show the details of a sweep: progress, best trials, and which parameters matter.

    For example:

      shoal sweep inspect lr
      shoal sweep inspect lr --json

    Parameters
    ----------
    name
        The sweep's name or id.
    """
    from shoal.cli.sweep.page import BEST, print_sweep

    with connect() as client:
        sweep = client.sweeps.get(name)
        best = [] if out.json or not sweep.best else client.sweeps.trials(name, order="result", limit=BEST)
    out.show(sweep, lambda: print_sweep(sweep, best))


@app.command
def trials(
    name: str,
    /,
    *,
    order: Literal["number", "result"] = "number",
    limit: int | None = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
) -> int:
    """List a sweep's trials: values, result, job. With -f, follow the sweep until it ends.

    Ctrl-C only stops following; the sweep continues.

    For example:

      shoal sweep trials lr
      shoal sweep trials lr --order result --limit 10
      shoal sweep trials lr -f

    Parameters
    ----------
    name
        The sweep's name or id.
    order
        Sort by number, or by result with the best first (default number).
    limit
        Maximum number of trials to show (default: all).
    follow
        Follow the sweep until it ends; the exit code is its result.
    """
    from itertools import islice

    from shoal.cli.sweep.follow import follow_sweep
    from shoal.cli.sweep.page import trial_columns

    with connect() as client:
        sweep = client.sweeps.get(name)
        if follow:
            return follow_sweep(client, sweep)
        found = list(islice(client.sweeps.all_trials(name, order=order), limit))
    columns = trial_columns(sweep.spec.space, with_job=True)
    out.show(found, lambda: out.table(found, columns, empty="No trials yet."))
    return 0


@app.command
def wait(name: str, /, *, timeout: str | None = None) -> int:
    """Wait until a sweep has ended; exit 0 if it finished, 1 if not, 7 on timeout.

    For example:

      shoal sweep wait lr
      shoal sweep wait lr --timeout 8h

    Parameters
    ----------
    name
        The sweep's name or id.
    timeout
        Maximum time to wait: 90s, 30m, 8h …
    """
    from shoal.cli.sweep.follow import finish

    limit_s = parse_duration(timeout, "--timeout") if timeout else None
    with connect() as client:
        sweep = client.sweeps.wait(name, timeout_s=limit_s)
    if out.json:
        out.emit(sweep)
    return finish(sweep)


@app.command
def stop(*names: str, wait: bool = False) -> int:
    """Stop sweeps: no new trials start, and the jobs of running trials are stopped.

    Results are kept. Continue with `shoal sweep rerun`.

    For example:

      shoal sweep stop lr
      shoal sweep stop lr wide --wait

    Parameters
    ----------
    names
        The sweeps' names or ids.
    wait
        Wait until they have stopped.
    """
    demand(names, "sweep")
    with connect() as client:

        def stop_one(name: str) -> object:
            sweep = client.sweeps.stop(name)
            sweep = client.sweeps.wait(name) if wait else sweep
            ended = f"has ended: {sweep.status}" if sweep.status != "stopped" else "has stopped"
            out.info(f"Sweep '{sweep.name}' {'is stopping' if sweep.ended_at is None else ended}.")
            return sweep

        return each(names, stop_one)


@app.command
def rerun(
    name: str, /, *, failed: bool = False, follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False
) -> int:
    """Continue a sweep that was stopped or failed; with --failed, also repeat its failed trials.

    Repeated trials keep their numbers and values. Finished trials are not
    changed.

    For example:

      shoal sweep rerun lr --failed
      shoal sweep rerun lr -f

    Parameters
    ----------
    name
        The sweep's name or id.
    failed
        Also repeat the failed trials.
    follow
        Follow the sweep until it ends; the exit code is its result. Ctrl-C only stops following.
    """
    from shoal.cli.sweep.follow import follow_sweep

    with connect() as client:
        sweep = client.sweeps.rerun(name, failed=failed)
        if follow:
            return follow_sweep(client, sweep)
    out.show(sweep, lambda: out.line(sweep.id))
    out.info(f"Sweep '{sweep.name}' is {sweep.status} again.")
    out.dim(f"  {out.prog} sweep trials {sweep.name} -f")
    return 0


@app.command
def delete(*names: str, jobs: bool = False, yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False) -> int:
    """Delete sweeps that have ended. Their jobs are kept unless --jobs is given.

    For example:

      shoal sweep delete lr
      shoal sweep delete lr wide --jobs --yes

    Parameters
    ----------
    names
        The sweeps' names or ids.
    jobs
        Also delete the jobs of their trials, with logs and history.
    yes
        Do not ask.
    """
    demand(names, "sweep")
    shown = ", ".join(f"'{name}'" for name in names)
    if not confirm(f"Delete {shown}{' with all jobs, logs and history' if jobs else ''}?", yes=yes):
        out.info("Nothing was deleted.")
        return 0
    with connect() as client:

        def delete_one(name: str) -> object:
            client.sweeps.delete(name, jobs=jobs)
            out.info(f"Sweep '{name}' deleted.")
            return {"deleted": name}

        return each(names, delete_one)
