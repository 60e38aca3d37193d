"""`shoal training quote`: estimate of a job's time and cost, from similar jobs or from a short probe."""

from __future__ import annotations

import secrets
import time
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli.shared.format import clean, duration
from shoal.cli.shared.job_flags import CODE, JobFlags, check_job
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_duration
from shoal.cli.shared.session import connect, session
from shoal.cli.shared.source import send_source
from shoal.core.errors import JobFailed, UsageError
from shoal.core.money import MILLION, money

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.client import Client
    from shoal.core.billing import QuoteRow, QuoteView
    from shoal.core.jobs import JobSpec, JobView

_SPARE_S = 60
"""Seconds added to a probe's time limit, which ends the probe if this command is killed."""
_POLL_S = 0.5


def quote(
    *entry: str,
    flags: JobFlags | None = None,
    profile: Annotated[str | None, Parameter(group=CODE)] = None,
    probe: str | None = None,
) -> None:
    """Estimate the duration and cost of a job, at this and other sizes.

    The estimate is based on jobs of the workspace that ran the same script
    with the same kinds of arguments. If there are none, use --probe to run the
    job for a short time and measure its speed. Accepts the options of
    `training run`, and reads shoal.yaml as it does.

    For example:

      shoal training quote -- train.py --steps 10000
      shoal training quote --probe 60s --accels 2 -- train.py --steps 10000
      shoal training quote --json -- train.py

    Parameters
    ----------
    entry
        The script, relative to the code's root, and its arguments, after `--`.
    profile
        Profile of the folder's shoal.yaml to use.
    probe
        Run the job for this long first and measure its speed: 60s, 5m. The probe is billed.
    """
    _refuse_stray(entry)
    flags = flags or JobFlags()
    choice = flags.choice()
    length_s = parse_duration(probe, "--probe") if probe else None
    spec = check_job("quote", entry, flags.wanted(), choice, command="training quote")
    with connect() as client:
        spec.source_id, spec.entry = send_source(client, choice, entry)
        job = _probe(client, spec, length_s).id if length_s else None
        found = fetch_quote(client, spec, job)
    out.show(found, lambda: show(found, spec.entry))


def fetch_quote(client: Client, spec: JobSpec, job: str | None = None) -> QuoteView:
    from shoal.core.billing import QuoteRequest

    return client.billing.quote(
        QuoteRequest(
            entry=spec.entry,
            min_nodes=spec.min_nodes,
            max_nodes=spec.max_nodes,
            accels=spec.accels,
            device=spec.device,
            gpu=spec.gpu,
            gpu_memory_gb=spec.gpu_memory_gb,
            labels=spec.labels,
            source_id=spec.source_id,
            job=job,
        )
    )


def show(found: QuoteView, entry: Sequence[str]) -> None:
    if found.rows:
        columns = [
            Column("NODES × SLOTS", lambda r: f"{r.nodes} × {r.accels}"),
            Column("TIME", _time),
            Column("SLOT-HOURS", _slot_hours, rank=1),
            Column("BASED ON", _basis, is_text=True, rank=2),
        ]
        if found.price:
            columns.insert(3, Column("COST", lambda r: _cost(r, found.currency)))
        out.table(found.rows, columns)
        out.dim(f"From: {', '.join(clean(name) for name in found.rests_on)}.")
    else:
        out.info("No estimate yet: no similar job has run.")
    for line in found.said:
        out.dim(f"{clean(line)}.")
    if not found.rows:
        out.dim(f"To measure: {out.prog} training quote --probe 60s -- {clean(entry[0])}")
    if not found.price:
        out.dim("Slots have no price on this server.")


def lines(found: QuoteView) -> list[str]:
    """Return the estimate as sentences, for commands that then run the job."""
    if not found.rows:
        return ["No estimate of time and cost: no similar job has run."]
    asked = found.rows[0]
    cost = f", {_cost(asked, found.currency)}" if found.price else ""
    told = f"Estimate: {_time(asked)}{cost} ({_basis(asked)})."
    # Remarks about other sizes ("bound: …") explain the table, which is not shown here.
    return [told, *(f"{clean(line)}." for line in found.said if not line.startswith("bound:"))]


def _refuse_stray(entry: Sequence[str]) -> None:
    if session.after_dashes is not None and len(entry) > session.after_dashes:
        stray = entry[: len(entry) - session.after_dashes]
        raise UsageError(
            f"Unexpected argument {' '.join(map(repr, stray))}. A quote needs no name.",
            hint=f"{out.prog} training quote -- {' '.join(entry[len(stray) :]) or 'train.py'}",
        )


def _probe(client: Client, spec: JobSpec, length_s: float) -> JobView:
    """Run a real job and stop it after `length_s` of run time. ^C stops it at once."""
    stem = "".join(c for c in PurePosixPath(spec.entry[0]).stem if c.isascii() and (c.isalnum() or c in "_-"))
    changes = {
        "name": f"probe-{stem[:40] or 'job'}-{secrets.token_hex(2)}",
        "time_limit_s": round(length_s) + _SPARE_S,
        "max_restarts": 0,
        "keep_last": 1,
    }
    prices = client.billing.prices()
    dearest = max(prices.prices.values())
    cost = dearest * spec.max_nodes * spec.accels * (length_s + _SPARE_S) / 3600
    told = f"; it costs at most {money(round(cost * MILLION), prices.currency)}" if dearest else ""
    job = client.jobs.create(spec.model_copy(update=changes))
    out.info(f"Probing for {duration(length_s)} as job '{job.name}'{told}.")
    try:
        return _measured(client, job, length_s)
    except BaseException:
        client.jobs.stop(job.id)
        raise


def _measured(client: Client, job: JobView, length_s: float) -> JobView:
    since: float | None = None
    while not (view := client.jobs.get(job.id)).status.is_terminal:
        if view.status == "running" and since is None:
            since = time.monotonic()
        if since is not None and time.monotonic() - since >= length_s:
            client.jobs.stop(job.id)
            view = client.jobs.wait(job.id)
            break
        time.sleep(_POLL_S)
    if view.status == "failed":
        raise JobFailed(
            f"The probe '{view.name}' failed: {clean(view.reason or 'no reason was given')}",
            hint=f"{out.prog} training logs {view.name}",
        )
    return view


def _time(row: QuoteRow) -> str:
    return _range(row.low_s, row.high_s, duration)


def _slot_hours(row: QuoteRow) -> str:
    high = None if row.high_s is None else row.high_s * row.slots / 3600
    return _range(row.low_s * row.slots / 3600, high, lambda hours: f"{hours:.3g}")


def _cost(row: QuoteRow, currency: str) -> str | None:
    if row.cost_low is None:
        return None
    return _range(row.cost_low, row.cost_high, lambda cost: money(round(cost * MILLION), currency))


def _range(low: float, high: float | None, text: Callable[[float], str]) -> str:
    if high is None:
        return f"at least {text(low)}"
    return text(low) if text(low) == text(high) else f"{text(low)} to {text(high)}"


def _basis(row: QuoteRow) -> str:
    return f"{row.basis}, {row.jobs} job{'' if row.jobs == 1 else 's'}"
