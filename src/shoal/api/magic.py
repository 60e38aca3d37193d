"""`%load_ext shoal`: the cell magic `%%shoal`, which runs a cell as a job and shows its live chart below."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any, NoReturn

from shoal.core.errors import ShoalError, UsageError

RESULT = "job"
"""Variable of the notebook that holds the newest job."""


def load(shell: Any) -> None:
    """Register the magic with an IPython shell."""
    shell.register_magic_function(_magic(shell), "cell", "shoal")


def _magic(shell: Any) -> Any:
    def shoal(line: str, cell: str) -> None:
        """Run the cell as a job: %%shoal [NAME] [--nodes N] [--accels N] [--dataset NAME] … [-- ARGUMENTS]"""
        try:
            options = parse(line)
            job = run_cell(options, cell)
        except ShoalError as error:
            print(f"error: {error.message}" + (f"\n  hint: {error.hint}" if error.hint else ""))
            return
        shell.user_ns[RESULT] = job
        if not options.no_wait:
            job.watch()

    return shoal


def run_cell(options: argparse.Namespace, cell: str) -> Any:
    """Submit the cell as a job of the current server and return it."""
    from shoal.api.code import CELL, send_cell
    from shoal.api.jobs import Job
    from shoal.api.workspace import connect, job_spec
    from shoal.client.job_names import create_job, free_name

    if not cell.strip():
        raise UsageError("The cell is empty.", hint="Write the script's code below the line with %%shoal.")
    space = connect(options.url, workspace=options.workspace)
    spec = job_spec(
        [CELL, *options.arguments], options.name, min_nodes=options.nodes, max_nodes=options.nodes,
        accels=options.accels, env=dict(_pair(text) for text in options.env), datasets=options.dataset,
        device=options.device, time_limit=options.time_limit,
    )  # fmt: skip
    spec.source_id, spec.entry[0] = send_cell(space.client, Path(options.folder), cell)
    if options.name:
        spec.name = free_name(space.client, options.name)
    return Job(space.client, create_job(space.client, spec))


def parse(line: str) -> argparse.Namespace:
    """Return the options of the magic's line; raise UsageError if they are wrong."""
    words = shlex.split(line)
    at = words.index("--") if "--" in words else len(words)
    parser = _Parser(prog="%%shoal", add_help=False)
    parser.add_argument("name", nargs="?")
    for option, default in (("--nodes", 1), ("--accels", 1)):
        parser.add_argument(option, type=int, default=default)
    for option in ("--dataset", "--env"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("--device", default="auto")
    for option in ("--time-limit", "--url", "--workspace"):
        parser.add_argument(option)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--no-wait", action="store_true")
    options = parser.parse_args(words[:at])
    options.arguments = words[at + 1 :]
    return options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%shoal: {message}.", hint=" ".join(self.format_usage().split()).removeprefix("usage: "))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--env {text} is not NAME=VALUE.", hint="--env WANDB_PROJECT=exp")
    return name, value
