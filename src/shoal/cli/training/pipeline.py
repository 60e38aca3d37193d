"""`shoal training pipeline`: submit the steps of the project file, each as a job that starts after the steps it names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from shoal.cli.shared.output import Column, out
from shoal.cli.shared.project_file import FILE_NAME, check_profile, read_project
from shoal.cli.shared.session import session
from shoal.cli.training.run import send
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.core.jobs import JobView


def pipeline(*, profile: str | None = None, again: bool = False) -> None:
    """Submit the steps of the folder's shoal.yaml as jobs, each after the steps it names.

    Each step is an ordinary job, named NAME-STEP. The newest checkpoint of a
    step is at /input/STEP in those after it. A step that succeeded before with
    the same code, inputs and options is not run again.

    For example:

      shoal training pipeline
      shoal training pipeline --profile debug
      shoal training pipeline --again

    Parameters
    ----------
    profile
        Profile of shoal.yaml to use for all steps.
    again
        Run all steps, also those that are unchanged.
    """
    path = Path(FILE_NAME)
    if not path.is_file():
        raise UsageError(f"There is no {FILE_NAME} in this folder.", hint=f"{out.prog} init")
    from shoal.core.project_file import usable_name

    file = read_project(path)
    check_profile(file, profile, path)
    steps = file.steps()
    if not steps:
        hint = "pipeline: {prepare: {run: prepare.py}, train: {run: train.py, after: [prepare]}}"
        raise UsageError(f"{path} has no pipeline.", hint=hint)
    base = str(file.options(profile).get("name") or usable_name(path.absolute().parent.name))
    jobs: dict[str, JobView] = {}
    for step, after in steps.items():
        words = [f"{base}-{step}", "--step", step, *([] if again else ["--reuse"])]
        words += ["--profile", profile] if profile else []
        for one in after:
            name = f"{one.job}={jobs[one.job].name}" if one.job in jobs else one.job
            words += ["--after", name if one.when == "succeeded" else f"{name}:{one.when}"]
        jobs[step] = _submit(words)
    rows = [{"step": step, "job": job} for step, job in jobs.items()]
    out.show(rows, lambda: _print(rows))


def _submit(words: list[str]) -> JobView:
    """Submit one step, with its options read as those of `training run`."""
    from shoal.cli.shared.project_file import from_project

    session.after_dashes = None
    reader = App(name="run")
    reader.default(send)
    reader.config = (from_project,)
    _, bound, _ = reader.parse_args(words, exit_on_error=False, print_error=False)
    session.numbers_name = True  # the names are made up here
    sent: JobView = send(*bound.args, **bound.kwargs)
    return sent


def _print(rows: list[dict[str, object]]) -> None:
    columns = [
        Column("STEP", lambda row: row["step"]),
        Column("JOB", lambda row: row["job"].name),
        Column("STATUS", lambda row: row["job"].status, is_status=True),
        Column(
            "AFTER", lambda row: ", ".join(one.job for one in row["job"].chain if not one.is_next) or "-", is_text=True
        ),
        Column("ID", lambda row: row["job"].id, is_id=True),
    ]
    out.table(rows, columns)
