"""`shoal.sweep`: try a script on a server, or a function in processes of this machine, with many values."""

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
from shoal.tune.given import Space
from shoal.tune.local import LocalSweep, Runner
from shoal.tune.remote import RemoteSweep, locate, submit

Script = str | Path | Sequence[str]
"""A script, or the script and its arguments."""


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
    """Try many values and find the best.

    `space`: name → values: a list, a Range, "1e-5:1e-2:log" or "64:512"; or Params that hold Ranges.
    A script goes to the server as `shoal sweep run` would send it, and this returns at once: `.wait()`, then `.best` and
    `.trials`. `folder` is the code to send (default: the present one), `budget` what all trials may use ("5.00", or "2h" of
    slots); `job` are fields of a job such as datasets, env, accels.
    A function is called here, `parallel` processes at a time, with the values as a dict (or as Params, if the space is), and
    this returns when all is done. It returns the metric's value, or yields it as it goes, or calls its second argument with it:
    asha and hyperband then end what falls behind.
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
        if strange := [*job, *(name for name, value in elsewhere.items() if value)]:
            raise UsageError(f"a function runs here and takes no {', '.join(strange)}", hint="sweep a script instead")
        called = name or getattr(what, "__name__", "function").strip("<>_") or "function"
        spec = _spec(called, {"entry": [called]}, found.by_index(), search, options)
        return Runner(what, spec, found, say=_silent if quiet else _say).run()
    words = [str(what)] if isinstance(what, str | Path) else [str(word) for word in what]
    root, entry = locate(words, folder)
    name = name or f"{Path(entry[0]).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    spec = _spec(name, {**job, "entry": entry}, found.as_json(), search, options)
    client = connect(url=url, workspace=workspace, say=_silent if quiet else _say)
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
        told = str(first["msg"]).removeprefix("Value error, ")
        raise UsageError(f"{field}: {told}" if field else told, hint="help(shoal.sweep)") from None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    """For those who asked for it."""
