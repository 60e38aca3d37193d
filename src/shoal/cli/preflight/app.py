"""`shoal preflight`: run a few real steps of a job before it is queued."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from cyclopts import Parameter

from shoal.cli.shared.job_flags import CODE, JobFlags, check_job, refuse_stray_words
from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect
from shoal.cli.shared.source import send_source
from shoal.core.errors import JobFailed


def preflight(
    name: str,
    /,
    *entry: str,
    flags: JobFlags | None = None,
    profile: Annotated[str | None, Parameter(group=CODE)] = None,
    no_check: bool = False,
) -> int:
    """Run a job's first steps on one slot and report problems.

    The script runs unchanged, in the job's environment and on its data:
    imports, arguments, batches, forward, backward and optimizer steps, an
    evaluation, and a checkpoint that is written and read back. Loops over
    data end early. Its output is discarded. Accepts the options of
    `training run`, which runs a preflight automatically for long jobs and for
    jobs on several nodes, and reads shoal.yaml as it does.

    Exits 1 if it has found errors, 0 otherwise.

    For example:

      shoal preflight big --nodes 2 --accels 4 -- train.py --lr 3e-4
      shoal preflight tuned --dataset wikitext --json -- train.py

    Parameters
    ----------
    name
        Name of the job.
    entry
        The script, relative to the code's root, and its arguments, after `--`.
    profile
        Profile of the folder's shoal.yaml to use.
    no_check
        Do not check the code first (see `shoal check`).
    """
    from shoal.cli.preflight.run import print_report, run_preflight
    from shoal.cli.shared.findings import warn_of_fetched, warn_on_submit
    from shoal.cli.training.quote import fetch_quote

    refuse_stray_words(entry, command="preflight")
    flags = flags or JobFlags()
    choice = flags.choice()
    spec = check_job(name, entry, flags.wanted(), choice, command="preflight")
    with connect() as client:
        lasting = choice.archive is None and choice.notebook is None
        look = None if no_check else partial(warn_on_submit, spec, lasting=lasting)
        spec.source_id, spec.entry = send_source(client, choice, entry, look=look)
        if choice.is_fetched and not no_check:
            warn_of_fetched(client, spec)
        with run_preflight(client, spec) as view:
            report = view.report if view else None
            if view is None or report is None:
                raise JobFailed(f"The preflight ended without a report: {(view and view.reason) or 'it was stopped'}")
            quote = fetch_quote(client, spec, view.id) if report.facts.step_s else None
        told = report.model_dump(mode="json") | {"passed": report.passed, "quote": quote and quote.model_dump()}
        out.show(told, lambda: print_report(report, quote))
    return int(not report.passed)
