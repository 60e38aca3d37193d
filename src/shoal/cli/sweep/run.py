"""`shoal sweep run`: run a script with many hyperparameter values, each as its own job."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from shoal.cli.shared.format import plural
from shoal.cli.shared.job_flags import JobFlags, check_job, many, refuse_stray_words, submitting
from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect
from shoal.cli.shared.source import send_source
from shoal.cli.sweep.file import SUFFIXES
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.core.jobs import JobSpec
    from shoal.core.sweeps import Axis, SweepSpec, SweepView

SEARCH = Group("Search", sort_key=0)
SHOWN = 5
"""Number of trials that a preview (--dry-run) shows."""
_EXAMPLE = "sweep run NAME --param lr=1e-4,3e-4 -- train.py"


@Parameter(name="*")
@dataclass(slots=True, kw_only=True)
class SweepFlags:
    """Search options of a sweep, as typed.

    Parameters
    ----------
    param
        Values to try: NAME=1,2,3, NAME=LOW:HIGH or NAME=LOW:HIGH:log (repeatable).
    search
        Search method (default: grid, or tpe if a parameter is a range).
    metric
        Metric to optimize, as reported by the script (default eval/loss).
    direction
        Minimize or maximize the metric (default min).
    trials
        Maximum number of trials; optional for a grid.
    parallel
        Number of trials that run at the same time (default 1).
    seed
        Random seed of the search (default 0).
    first_rung
        Number of reports before asha and hyperband first compare trials (default 1).
    factor
        Reduction factor of asha and hyperband: the best 1/factor of the trials at each rung continue (default 3).
    """

    param: Annotated[list[str] | None, many("--param", "-p", group=SEARCH)] = None
    search: Annotated[Literal["grid", "random", "tpe", "asha", "hyperband"] | None, Parameter(group=SEARCH)] = None
    metric: Annotated[str, Parameter(group=SEARCH)] = "eval/loss"
    direction: Annotated[Literal["min", "max"], Parameter(group=SEARCH)] = "min"
    trials: Annotated[int | None, Parameter(group=SEARCH)] = None
    parallel: Annotated[int, Parameter(group=SEARCH)] = 1
    seed: Annotated[int, Parameter(group=SEARCH)] = 0
    first_rung: Annotated[int, Parameter(group=SEARCH)] = 1
    factor: Annotated[int, Parameter(group=SEARCH)] = 3

    def spec(self, job: JobSpec) -> SweepSpec:
        from pydantic import ValidationError

        from shoal.core.sweeps import SweepSpec

        space = self._space()
        ranges = [name for name, axis in space.items() if axis.kind == "between"]
        search = self.search or ("tpe" if ranges else "grid")
        if search == "grid" and ranges:
            hint = f"--search tpe --trials 30, or --param {ranges[0]}=1,2,3"
            raise UsageError(f"Grid search needs a list of values, but {', '.join(ranges)} is a range.", hint=hint)
        if search != "grid" and self.trials is None:
            raise UsageError(f"Search by {search} needs a number of trials.", hint="--trials 30")
        budget, job.budget = job.budget, None  # the budget is for all trials together
        names = ("metric", "direction", "trials", "parallel", "seed", "first_rung", "factor")
        try:
            return SweepSpec(
                name=job.name,
                job=job,
                space=space,
                search=search,
                budget=budget,
                **{name: getattr(self, name) for name in names},
            )
        except ValidationError as error:
            first = error.errors()[0]
            option = f"--{str(first['loc'][0]).replace('_', '-')}: " if first["loc"] else ""
            told = str(first["msg"]).removeprefix("Value error, ")
            raise UsageError(f"{option}{told}.", hint=f"{out.prog} sweep run --help") from None

    def _space(self) -> dict[str, Axis]:
        from shoal.tune.space import read_param

        space: dict[str, Axis] = {}
        for text in self.param or ():
            name, axis = read_param(text)
            if name in space:
                hint = f"--param {name}=1,2,3"
                raise UsageError(f"--param {name} is given twice: give all its values at once.", hint=hint)
            space[name] = axis
        if not space:
            raise UsageError("No parameters given. Use --param.", hint=f"{out.prog} {_EXAMPLE}")
        return space


def run(
    name: str,
    /,
    *entry: str,
    sweep: SweepFlags | None = None,
    flags: JobFlags | None = None,
    dry_run: bool = False,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
) -> int:
    """Run a script with many hyperparameter values and find the best ones.

    Every trial is a job named NAME-0, NAME-1, … It gets its values as
    arguments (--lr 0.0005) and from `shoal.trial_params()`. Trials are compared
    by --metric, which the script reports with run.step or run.evaluate. asha
    and hyperband stop bad trials early. A trial that was run before is not
    repeated. --budget is the limit for all trials together.

    With --file sweep.yaml, the options are read from a file, under the same
    names; options on the command line override it.

    For example:

      shoal sweep run lr --param lr=5e-4,7e-4,1e-3 -f -- train.py --epochs 3
      shoal sweep run wide --param lr=1e-5:1e-2:log --param hidden=100:300 \\
          --search asha --trials 50 --parallel 4 --metric eval/loss -- train.py
      shoal sweep run pairs --param width@size=64,128 --param depth@size=2,4 \\
          --param seed=0,1,2 --dry-run -- train.py
      shoal sweep run nightly --file sweep.yaml

    Parameters
    ----------
    name
        Name of the sweep, unique in its workspace.
    entry
        The script, relative to the code's root, and its arguments, after `--`.
    dry_run
        Show the number of trials and the first few; submit nothing.
    follow
        Follow the sweep until it ends; the exit code is its result. Ctrl-C only stops following.
    """
    from shoal.cli.sweep.follow import follow_sweep

    refuse_stray_words(entry, command="sweep run")
    flags, sweep = flags or JobFlags(), sweep or SweepFlags()
    _check_code(name, entry, flags)
    choice = flags.choice()
    spec = sweep.spec(check_job(name, entry, flags.wanted(), choice, command="sweep run"))
    if dry_run:
        _preview(spec, list(entry) or [choice.file.name if choice.file else str(flags.notebook)])
        return 0
    with connect() as client:
        spec.job.source_id, spec.job.entry = send_source(client, choice, entry)
        with submitting(f"sweep inspect {name}"):
            view = client.sweeps.create(spec)
        if not follow:
            out.show(view, lambda: _print_submitted(view))
            return 0
        out.info(f"Submitted sweep '{view.name}' ({_about(view.trials, view.spec)}).")
        return follow_sweep(client, view)


def _check_code(name: str, entry: tuple[str, ...], flags: JobFlags) -> None:
    if flags.file is not None and flags.file.suffix in SUFFIXES:
        raise UsageError(f"There is no file {flags.file}.", hint=f"{out.prog} {_EXAMPLE}")
    if not entry and flags.file is None and flags.notebook is None and not name.endswith(".py"):
        raise UsageError("No script given. Name it after `--`.", hint=f"{out.prog} {_EXAMPLE.replace('NAME', name)}")


def _preview(spec: SweepSpec, entry: list[str]) -> None:
    from shoal.tune.search import Searcher
    from shoal.tune.space import arguments

    searcher = Searcher(spec)
    asked = [searcher.ask(number) for number in range(min(SHOWN, searcher.count))]
    first = [params for params in asked if params is not None]
    if out.json:
        out.emit({"trials": searcher.count, "search": spec.search, "first": first})
        return
    out.line(f"{_about(searcher.count, spec)}:")
    for number, params in enumerate(first):
        out.line(f"  {spec.name}-{number}  {shlex.join([*entry, *arguments(params)])}")
    if searcher.count > len(first):
        later = "" if spec.search in ("grid", "random") else ", chosen from the results of earlier trials"
        out.line(f"  … and {searcher.count - len(first)} more{later}")
    out.dim("Nothing was submitted. Remove --dry-run to submit it.")


def _print_submitted(view: SweepView) -> None:
    out.line(view.id)
    out.info(f"Submitted sweep '{view.name}' ({_about(view.trials, view.spec)}).")
    out.dim(f"  {out.prog} sweep trials {view.name} -f")
    out.dim(f"  {out.prog} sweep inspect {view.name}")


def _about(count: int, spec: SweepSpec) -> str:
    at_once = f", {spec.parallel} at once" if spec.parallel > 1 else ""
    return f"{plural(count, 'trial')} by {spec.search}{at_once}"
