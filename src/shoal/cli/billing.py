"""`shoal billing`: usage, prices, and verification of the ledger."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from shoal.cli.shared.format import clean
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_since
from shoal.cli.shared.session import connect
from shoal.core.errors import UsageError
from shoal.core.gpu_models import check_model
from shoal.core.money import KINDS, MILLION, check_currency, money

if TYPE_CHECKING:
    from shoal.core.billing import PricesView, UsageView, VerifyView

app = App(name="billing")
By = Literal["job", "workspace", "person", "day"]
_TITLES = {"job": "JOB", "workspace": "WORKSPACE", "person": "PERSON", "day": "DAY (UTC)"}


@app.command
def usage(
    *,
    by: By | None = None,
    since: str | None = None,
    until: str | None = None,
    everywhere: bool = False,
    everyone: bool = False,
    as_csv: Annotated[bool, Parameter(name="--csv")] = False,
) -> None:
    """Show usage in slot-hours, and its cost if slots have a price.

    A slot is counted from its node's first report to its last, by the
    server's clock. Running attempts are included.

    For example:

      shoal billing usage
      shoal billing usage --since 7d --by day
      shoal billing usage --since 2026-01-01 --until 2026-02-01 --by person --csv
      shoal billing usage --everywhere
      shoal billing usage --everyone --by workspace --json

    Parameters
    ----------
    by
        Group by job (default), workspace, person or day.
    since
        Count only usage after this time: 7d (that long ago) or 2026-01-31.
    until
        Count only usage before this time.
    everywhere
        Include all workspaces you are a member of; grouped by workspace unless --by is given.
    everyone
        Include the whole server; grouped by workspace unless --by is given. Admins only.
    as_csv
        Print CSV.
    """
    if everywhere and everyone:
        raise UsageError("--everyone already includes --everywhere: give only one of them.")
    start = parse_since(since) if since else None
    end = parse_since(until, option="--until") if until else None
    if start and end and start >= end:
        raise UsageError("--since must be earlier than --until.")
    is_wide = everywhere or everyone or by == "workspace"
    with connect() as client:
        ask = client.billing.server_usage if everyone else client.billing.my_usage if is_wide else client.billing.usage
        found = ask(by=by or ("workspace" if is_wide else "job"), since=start, until=end)
    if as_csv and not out.json:
        out.write(_csv(found))
    else:
        out.show(found, lambda: _print_usage(found))


@app.command
def verify(*, everything: bool = False, head: str | None = None) -> int:
    """Verify the ledger's chain of hashes from the first entry to the last; exit 1 if anything was changed.

    Prints the head: number and hash of the last entry. Store it outside the
    server and pass it to a later check, to prove that the entries up to it
    were not rewritten.

    For example:

      shoal billing verify
      shoal billing verify --everything
      shoal billing verify --head 812:5d41402abc4b2a76b9719d911017c592ae1a…

    Parameters
    ----------
    everything
        List damaged entries of all workspaces. Admins only.
    head
        Head printed by an earlier check, which the ledger must still contain.
    """
    with connect() as client:
        found = client.billing.verify(everything=everything, head=head)
    out.show(found, lambda: _print_verified(found, everything))
    return 0 if found.whole else 1


@app.command
def price(
    kind: str | None = None,
    amount: float | None = None,
    /,
    *,
    currency: str | None = None,
    remove: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Show the price of a slot per hour, or set it (admins only).

    A new price applies to attempts that start from now on; running attempts
    keep the price they started with. A price of 0 means free of charge.

    For example:

      shoal billing price
      shoal billing price cuda 1.20 --currency EUR
      shoal billing price cpu 0
      shoal billing price H100 3.50
      shoal billing price H100 --remove

    Parameters
    ----------
    kind
        Kind of slot (cpu, cuda, rocm or xpu), or a model of GPU such as H100,
        whose price goes before that of its kind.
    amount
        Price of one slot for one hour.
    currency
        Currency of all prices: EUR, USD …
    remove
        Remove the price of a model; the price of its kind applies again.
    """
    if kind is None and currency is None:
        with connect() as client:
            prices = client.billing.prices()
    else:
        _check_price(kind, amount, currency, remove)
        kinds = {kind: amount} if kind in KINDS and amount is not None else {}
        models = {kind: None if remove else amount} if kind and kind not in KINDS else {}
        with connect() as client:
            prices = client.billing.set_prices(kinds, currency, models=models)
    out.show(prices, lambda: _print_prices(prices))


def _check_price(kind: str | None, amount: float | None, currency: str | None, remove: bool) -> None:
    if kind is not None and kind not in KINDS:
        try:
            is_model = check_model(kind) and any(c.isdigit() for c in kind)  # a mistyped kind has no digit
        except ValueError:
            is_model = False
        if not is_model:
            raise UsageError(
                f"'{clean(kind)}' is neither a kind of slot ({', '.join(KINDS)}) nor a model of a GPU.",
                hint=f"{out.prog} billing price cuda 1.20, or {out.prog} billing price H100 3.50",
            )
    if remove and (kind in (None, *KINDS) or amount is not None):
        raise UsageError("--remove removes the price of a model.", hint=f"{out.prog} billing price H100 --remove")
    if kind is not None and not remove and (amount is None or not 0 <= amount <= MILLION):
        raise UsageError(
            f"Give the price of one '{kind}' slot for one hour, from 0 to {MILLION}.",
            hint=f"{out.prog} billing price {kind} 1.20",
        )
    if currency is not None:
        try:
            check_currency(currency)
        except ValueError as error:
            raise UsageError(f"{error}.", hint=f"{out.prog} billing price --currency EUR") from None


def cost_text(cost: float | None, currency: str | None) -> str | None:
    return None if cost is None else money(round(cost * MILLION), currency or "")


def _print_usage(found: UsageView) -> None:
    columns = [Column(_TITLES[found.by], lambda r: r.key)]
    if found.by != "job":
        columns.append(Column("JOBS", lambda r: r.jobs, is_right=True, rank=1))
    columns.append(Column("SLOT-HOURS", lambda r: f"{r.slot_seconds / 3600:.4f}", is_right=True))
    if found.costs:
        columns.append(Column("COST", lambda r: cost_text(r.cost, r.currency), is_right=True))
    out.table(found.rows, columns, empty="No usage.")
    costs = ", ".join(money(round(cost * MILLION), currency) for currency, cost in found.costs.items())
    out.dim(f"Total: {found.slot_seconds / 3600:.4f} slot-hours{', ' + costs if costs else ''}.")


def _csv(found: UsageView) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([found.by, "id", "jobs", "slot_seconds", "cost", "currency"])
    rows.writerows([r.key, r.id, r.jobs, r.slot_seconds, r.cost, r.currency] for r in found.rows)
    return text.getvalue()


def _print_verified(found: VerifyView, everything: bool) -> None:
    if found.whole:
        out.info(f"The ledger is intact: {found.entries} entr{'y' if found.entries == 1 else 'ies'} verified.")
        out.line(f"{found.seq}:{found.head}")
        return
    out.info("The ledger has been changed or damaged.")
    for problem in found.problems:
        which = "the ledger" if problem.seq is None else f"entry {problem.seq}"
        of_job = f" (job '{clean(problem.job)}')" if problem.job else ""
        out.line(f"{which}{of_job}: {clean(problem.what)}")
    if not found.problems:
        out.info("No entry of this workspace is affected.")
    if not everything:
        out.info(f"An admin can see all damaged entries: {out.prog} billing verify --everything")


def _print_prices(prices: PricesView) -> None:
    columns = [
        Column("KIND", lambda p: p[0]),
        Column(
            "PER SLOT-HOUR", lambda p: money(round(p[1] * MILLION), prices.currency) if p[1] else "-", is_right=True
        ),
    ]
    out.table([*prices.prices.items(), *sorted(prices.models.items())], columns)
