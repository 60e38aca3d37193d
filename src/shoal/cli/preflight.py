"""`shoal preflight`: a few true steps of a job before it waits for its turn."""

from __future__ import annotations

from functools import partial

from shoal.cli._job_flags import JobFlags, check_job, refuse_stray_words
from shoal.cli._output import out
from shoal.cli._session import connect
from shoal.cli._source import send_source
from shoal.core.errors import JobFailed


def preflight(name: str, /, *entry: str, flags: JobFlags | None = None, no_check: bool = False) -> int:
    """Try a job's first steps on one slot, and tell what would go wrong.

    The script runs as it is, in the job's own environment and on its data:
    imports, arguments, batches, forward, backward and optimizer steps, an
    evaluation, a checkpoint that is written and read back. Loops over data
    are ended early. Nothing it writes is kept. Takes the options of
    `training run`, which does the same by itself for jobs over one node and
    for long ones.

    Exits 1 if it has found errors, 0 otherwise.

    For example:

      shoal preflight big --nodes 2 --accels 4 -- train.py --lr 3e-4
      shoal preflight tuned --dataset wikitext --json -- train.py

    Parameters
    ----------
    name
        What the job would be called.
    entry
        After `--`: the script, relative to the code's root, and its arguments.
    no_check
        Do not look through the code first (see `shoal check`).
    """
    from shoal.cli._findings import warn_of_fetched, warn_on_submit
    from shoal.cli._preflight import tell, tried
    from shoal.cli._quote import ask

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
        with tried(client, spec) as view:
            report = view.report if view else None
            if view is None or report is None:
                raise JobFailed(f"The preflight told nothing: {(view and view.reason) or 'it was stopped'}")
            quote = ask(client, spec, view.id) if report.facts.step_s else None
        told = report.model_dump(mode="json") | {"passed": report.passed, "quote": quote and quote.model_dump()}
        out.show(told, lambda: tell(report, quote))
    return int(not report.passed)
