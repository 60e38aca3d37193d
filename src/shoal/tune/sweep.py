"""`shoal.sweep`: run a script on a server, or a function in local processes, with many parameter values."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from pydantic import ValidationError

from shoal.client.connect import connect
from shoal.core.errors import UsageError
from shoal.core.jobs import JobSpec
from shoal.core.sweeps import Axis, Between, Direction, Search, SweepSpec
from shoal.tune.local import LocalSweep, Runner
from shoal.tune.python_space import Space
from shoal.tune.remote import RemoteSweep, locate, submit

Script = str | Path | Sequence[str]
"""Script, or script and its arguments."""


@overload
def sweep(what: Script, space: Any, **options: Any) -> RemoteSweep: ...
@overload
def sweep(what: Callable[..., Any], space: Any, **options: Any) -> LocalSweep: ...
def sweep(
    what: Script | Callable[..., Any],
    space: Any,
    *,
    metric: str = "eval/loss",
    direction: Direction = "min",
    search: Search | None = None,
    trials: int | None = None,
    parallel: int = 1,
    seed: int = 0,
    first_rung: int = 1,
    factor: int = 3,
    budget: str | None = None,
    name: str | None = None,
    folder: str | Path | None = None,
    url: str | None = None,
    workspace: str | None = None,
    quiet: bool = False,
    **job: Any,
) -> LocalSweep | RemoteSweep:
    """Run trials with different parameter values and find the best.

    A script is sent to the server, as by `shoal sweep run`, and the call returns at once; use `.wait()`, then `.best` and
    `.trials`. A function runs in processes of this machine, and the call returns when all trials have ended. The function
    gets the values as a dict (or as Params, if the space is Params). It returns the value of the metric, yields it repeatedly,
    or calls its second argument with it; asha and hyperband then end trials that fall behind.

    Args:
        what: A script, a script with its arguments, or a function.
        space: Name → values (a list, a Range, "1e-5:1e-2:log" or "64:512"); or Params that hold Ranges.
        metric: Name of the metric to optimize.
        direction: "min" or "max".
        search: "grid", "random", "tpe", "asha" or "hyperband". Default: tpe if a parameter is a range, else grid.
        trials: Maximum number of trials.
        parallel: Number of trials that run at the same time.
        seed: Seed of the search.
        first_rung: Number of reports after which trials are first compared (asha, hyperband).
        factor: Reduction factor: the best 1/factor of the trials at each rung continue (asha, hyperband).
        budget: What all trials together may use: an amount ("5.00") or slot time ("2h"). Scripts only.
        name: Name of the sweep.
        folder: Folder with the code to send. Default: the current one. Scripts only.
        url: URL of the server. Scripts only.
        workspace: Workspace on the server. Scripts only.
        quiet: Print nothing.
        **job: Fields of the trials' jobs, such as datasets, env and accels. Scripts only.

    Returns:
        LocalSweep for a function, RemoteSweep for a script; both have `best`, `trials` and `wait()`.

    Example::

        sweep = shoal.sweep("train.py", {"lr": "1e-5:1e-2:log"}, trials=20, accels=1).wait()
        print(sweep.best.params)
    """
    found = Space(space)
    options = {
        "metric": metric,
        "direction": direction,
        "trials": trials,
        "parallel": parallel,
        "seed": seed,
        "first_rung": first_rung,
        "factor": factor,
        "budget": budget,
    }
    if callable(what):
        elsewhere = {"budget": budget, "folder": folder, "url": url, "workspace": workspace}
        if unexpected := [*job, *(name for name, value in elsewhere.items() if value)]:
            raise UsageError(
                f"a sweep of a function runs on this machine and takes no {', '.join(unexpected)}",
                hint="sweep a script instead",
            )
        called = name or getattr(what, "__name__", "function").strip("<>_") or "function"
        spec = _spec(called, {"entry": [called]}, found.by_index(), search, options)
        return Runner(what, spec, found, say=_silent if quiet else _print).run()
    words = [str(what)] if isinstance(what, str | Path) else [str(word) for word in what]
    root, entry = locate(words, folder)
    name = name or f"{Path(entry[0]).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    spec = _spec(name, {**job, "entry": entry}, found.as_json(), search, options)
    client = connect(url=url, workspace=workspace, say=_silent if quiet else _print)
    try:
        return submit(client, spec, root)
    except BaseException:
        client.close()
        raise


def _spec(
    name: str, job: Mapping[str, Any], space: dict[str, Axis], search: Search | None, options: Mapping[str, Any]
) -> SweepSpec:
    how = search or ("tpe" if any(isinstance(axis, Between) for axis in space.values()) else "grid")
    try:
        return SweepSpec(name=name, job=JobSpec(name=name, source_id="", **job), space=space, search=how, **options)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        message = str(first["msg"]).removeprefix("Value error, ")
        raise UsageError(f"{field}: {message}" if field else message, hint="help(shoal.sweep)") from None


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    """Print nothing."""
